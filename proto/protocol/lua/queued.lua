-- How many entries of a work stream wait, and how many are claimed or were released.
-- KEYS: stream      ARGV: group
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
local claimed = pending.err and 0 or pending[1]
return {redis.call('XLEN', KEYS[1]) - claimed, claimed}
