#!lua flags=allow-oom
-- Announce new weights, once, from the current attempt of the learner; control works when memory is full.
-- KEYS: policy, job, new_policy      ARGV: attempt, 'header', header
local attempt = redis.call('HGET', KEYS[2], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last and last[2][2] == ARGV[3] then
  return last[1]
end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('XTRIM', KEYS[1], 'MAXLEN', 1)  -- nobody wants an older one
redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'for', 'rollouts')
return id
