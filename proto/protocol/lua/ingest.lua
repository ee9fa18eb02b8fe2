-- The learner has logged a group: take it out of the exchange. A superseded learner takes nothing.
-- KEYS: graded, under_way, job      ARGV: attempt, group, entry id, group key
local attempt = redis.call('HGET', KEYS[3], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
if redis.call('XACK', KEYS[1], ARGV[2], ARGV[3]) == 0 then
  return 0
end
redis.call('XDEL', KEYS[1], ARGV[3])
redis.call('SREM', KEYS[2], ARGV[4])
return 1
