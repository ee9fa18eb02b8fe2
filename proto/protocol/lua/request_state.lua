-- The user wants something of a job. A queued job is cancelled at once; an ended one stays as it is.
-- KEYS: job      ARGV: requested, now
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return state
end
redis.call('HSET', KEYS[1], 'requested', ARGV[1])
if state == '"queued"' and ARGV[1] == '"cancel"' then
  redis.call('HSET', KEYS[1], 'state', '"cancelled"', 'finished_at', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'state')
