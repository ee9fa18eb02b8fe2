-- Append to a stream that only the current attempt of the learner may write.
-- KEYS: stream, job      ARGV: attempt, frame fields...
local attempt = redis.call('HGET', KEYS[2], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
