-- Replace a claimed entry by its result in the next stream; only the first one to try succeeds.
-- Acknowledging first makes it exclusive, and lets the XADD run when memory is full.
-- KEYS: input, output, faults      ARGV: group, entry id, input name, group key, frame fields...
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  return 0
end
redis.call('XDEL', KEYS[1], ARGV[2])
local fault = ARGV[3] .. '|' .. ARGV[2]
redis.call('HDEL', KEYS[3], fault .. '|deaths', fault .. '|failures')
redis.call('XADD', KEYS[2], 'NOMKSTREAM', '*', 'key', ARGV[4], unpack(ARGV, 5))
return 1
