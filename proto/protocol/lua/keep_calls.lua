#!lua flags=allow-oom
-- Say which calls a gateway waits for; returns those that no rollout has taken.
-- KEYS: those of the gateway, bodies, calls      ARGV: seconds, then id and tries of each
local waiting = {}
redis.call('DEL', KEYS[1])
for place = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
  if redis.call('HEXISTS', KEYS[2], ARGV[place]) == 1 then
    waiting[#waiting + 1] = ARGV[place]
  end
end
for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ARGV[1])
end
return waiting
