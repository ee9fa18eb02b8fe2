#!lua flags=allow-oom
-- The learner's attempt ends, and its job does not: the stack is free for another one. A job that was to be
-- paused, and was resumed meanwhile, goes on; one that is to be cancelled ends in its next attempt.
-- One that a person paused may rest for long, so its work goes, which its next attempt asks for again.
-- KEYS: job, active, held_up, keys to delete if it is paused..., billed      ARGV: attempt, job id, what holds it up or null, error
local attempt = redis.call('HGET', KEYS[1], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
local state, requested = unpack(redis.call('HMGET', KEYS[1], 'state', 'requested'))
if state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return redis.error_reply('FENCED the job has ended: ' .. state)
end
if requested == '"cancel"' then
  return 0
elseif ARGV[3] ~= 'null' then
  redis.call('SADD', KEYS[3], ARGV[2])
elseif requested ~= '"pause"' then
  return 0
else
  redis.call('DEL', unpack(KEYS, 3))  -- what was held up has its turn again
end
redis.call('HSET', KEYS[1], 'state', '"paused"', 'error', ARGV[4], 'fault', ARGV[3],
  'attempts_since_checkpoint', '0')
local active = redis.call('GET', KEYS[2])
if active and cjson.decode(active)['job_id'] == ARGV[2] then
  redis.call('DEL', KEYS[2])
end
redis.call('DEL', KEYS[#KEYS])
return 1
