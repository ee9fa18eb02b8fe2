#!lua flags=allow-oom
-- Name the job that the stack works on, from the current attempt of its learner.
-- KEYS: active, job      ARGV: attempt, active job
local attempt = redis.call('HGET', KEYS[2], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
