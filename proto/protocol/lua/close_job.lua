#!lua flags=allow-oom
-- A job ends: its last word goes into the record, its work streams go, the stack is free.
-- KEYS: job, jobs, active, held_up, keys to delete...
-- ARGV: attempt, job id, queue entry id, names and values...
local attempt = redis.call('HGET', KEYS[1], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
if redis.call('XDEL', KEYS[2], ARGV[3]) == 0 then
  return 0  -- a repeat: it has ended, and may have been revived since
end
redis.call('DEL', unpack(KEYS, 4))
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
local active = redis.call('GET', KEYS[3])
if active and cjson.decode(active)['job_id'] == ARGV[2] then
  redis.call('DEL', KEYS[3])
end
return 1
