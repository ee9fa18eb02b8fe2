-- Ask for a group once, however often the learner asks.
-- KEYS: requests, under_way, job      ARGV: attempt, group key, frame fields...
local attempt = redis.call('HGET', KEYS[3], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return redis.error_reply('FENCED the job has ended')
end
if redis.call('SADD', KEYS[2], ARGV[2]) == 0 then
  return 0
end
redis.call('XADD', KEYS[1], '*', 'key', ARGV[2], unpack(ARGV, 3))
return 1
