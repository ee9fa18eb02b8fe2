#!lua flags=allow-oom
-- The user wants something of a job. An ended one stays as it is, and so does the wish to cancel. The learner
-- obeys for the job that it works on; of any other it happens at once.
-- KEYS: job, active, held_up, keys to delete if it ends...      ARGV: requested, now, job id, its new budget or null
local state, before = unpack(redis.call('HMGET', KEYS[1], 'state', 'requested'))
if state and ARGV[4] ~= 'null' then
  redis.call('HSET', KEYS[1], 'budget_gpu_hours', ARGV[4])
end
if not state or state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return
end
if before ~= '"cancel"' then
  redis.call('HSET', KEYS[1], 'requested', ARGV[1])
end
local active = redis.call('GET', KEYS[2])
if state == '"running"' or (active and cjson.decode(active)['job_id'] == ARGV[3]) then
  return
end
redis.call('SREM', KEYS[3], ARGV[3])  -- who resumes it has mended what held it up
if ARGV[1] == '"cancel"' then
  redis.call('HSET', KEYS[1], 'state', '"cancelled"', 'finished_at', ARGV[2], 'error', 'null')
  redis.call('DEL', unpack(KEYS, 4))
elseif ARGV[1] == '"pause"' then
  redis.call('HSET', KEYS[1], 'state', '"paused"')
elseif before == '"pause"' then
  redis.call('HSET', KEYS[1], 'state', '"queued"', 'error', 'null')
end
