-- Have a call wait for a rollout, unless it waits already, or too many do.
-- KEYS: calls, their bodies      ARGV: what it is for, its id, its body, the most that may wait, seconds
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then
  return 1
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('RPUSH', KEYS[1], cjson.encode({ARGV[1], ARGV[2], tonumber(redis.call('TIME')[1])}))
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 1
