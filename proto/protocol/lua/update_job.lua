#!lua flags=allow-oom
-- Write fields of a job's record, if the attempt is the current one and the job has not ended.
-- KEYS: job      ARGV: attempt, names and values...
local attempt = redis.call('HGET', KEYS[1], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
local state = redis.call('HGET', KEYS[1], 'state')
if state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return redis.error_reply('FENCED the job has ended: ' .. state)
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
