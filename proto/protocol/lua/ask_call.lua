-- Have a call wait for a rollout, unless too many do. One that waits already is replaced.
-- KEYS: calls, their bodies, the calls that its gateway waits for, new_call
-- ARGV: what it is for, its id, its body, the most that may wait, seconds, its tries
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) and redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then
  return 0
end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[6])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('RPUSH', KEYS[1], cjson.encode({ARGV[1], ARGV[2], tonumber(redis.call('TIME')[1])}))
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'for', 'rollouts')
for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ARGV[5])
end
return 1
