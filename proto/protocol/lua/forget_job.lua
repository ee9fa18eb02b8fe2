#!lua flags=allow-oom
-- Forget a job that has ended; returns whether it is gone.
-- KEYS: job, job_index, events and others...      ARGV: job id
local state = redis.call('HGET', KEYS[1], 'state')
if state == '"queued"' or state == '"running"' or state == '"paused"' then
  return 0
end
redis.call('DEL', KEYS[1], unpack(KEYS, 3))
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
