#!lua flags=allow-oom
-- Give a claimed entry back, so that another worker may claim it at once; -1 if it is no longer ours.
-- KEYS: input, faults      ARGV: group, me, entry id, input name, 'failures', 'deaths' or 'unharmed'
local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not row or row[2] ~= ARGV[2] then
  return -1
end
redis.call('XCLAIM', KEYS[1], ARGV[1], 'released', 0, ARGV[3], 'JUSTID')
if ARGV[5] ~= 'unharmed' then
  local fault = ARGV[4] .. '|' .. ARGV[3] .. '|' .. ARGV[5]
  local before = redis.call('HGET', KEYS[2], fault)
  redis.call('HSET', KEYS[2], fault, before and before .. ' ' .. ARGV[2] or ARGV[2])
end
return 0
