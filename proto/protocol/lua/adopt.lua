-- Claim the oldest entry that anyone has claimed, for a reader that has no other beside it.
-- KEYS: input      ARGV: group, me, id after which to look
local row = redis.call('XPENDING', KEYS[1], ARGV[1], '(' .. ARGV[3], '+', 1)[1]
if not row then
  return false
end
local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, row[1])[1]
return {row[1], claimed and claimed[2] or {}}
