#!lua flags=allow-oom
-- A life of the learner begins: it gets the next attempt number, which fences every earlier one.
-- The token makes a repeat of the same call find the number that it got before. The job's streams are
-- made when memory is full too: a learner that comes back then is the one who will drain it.
-- KEYS: job, attempt token, lease, billed, work streams...      ARGV: token, me, job id, the group of each stream...
local holder = redis.call('HGET', KEYS[3], 'holder')
if holder and holder ~= ARGV[2] then
  return redis.error_reply('FENCED the learner ' .. holder .. ' has taken over')
end
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return redis.error_reply('FENCED the job has ended: ' .. tostring(state))
end
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  redis.call('SET', KEYS[2], ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'attempts_since_checkpoint', 1)
  redis.call('HINCRBY', KEYS[1], 'attempt', 1)
end
redis.call('SET', KEYS[4], ARGV[3])
for i = 5, #KEYS do
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[i], ARGV[i - 1], '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
    return made
  end
end
return tonumber(redis.call('HGET', KEYS[1], 'attempt'))
