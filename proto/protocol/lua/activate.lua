#!lua flags=allow-oom
-- Name the job that the stack works on, from the current attempt of the learner that takes up jobs.
-- KEYS: active, job, lease, billed      ARGV: attempt, active job, me, job id
local attempt = redis.call('HGET', KEYS[2], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
local holder = redis.call('HGET', KEYS[3], 'holder')
if holder and holder ~= ARGV[3] then
  return redis.error_reply('FENCED the learner ' .. holder .. ' has taken over')
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[4], ARGV[4])
return 1
