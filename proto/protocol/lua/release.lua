-- Give claimed entries back, so that any worker may claim them at once. With 'failed' it counts as
-- a failure of the entry and returns how many there were; -1 if the entry is no longer ours.
-- KEYS: input, faults      ARGV: group, me, entry id, input name, 'failed' or 'unharmed'
local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not row or row[2] ~= ARGV[2] then
  return -1
end
redis.call('XCLAIM', KEYS[1], ARGV[1], 'released', 0, ARGV[3], 'IDLE', 86400000, 'JUSTID')
if ARGV[5] == 'failed' then
  return redis.call('HINCRBY', KEYS[2], ARGV[4] .. '|' .. ARGV[3] .. '|failures', 1)
end
return 0
