#!lua flags=allow-oom
-- Write fields of a job's record, if the attempt is the current one.
-- KEYS: job      ARGV: attempt, names and values...
local attempt = redis.call('HGET', KEYS[1], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
