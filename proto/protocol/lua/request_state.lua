#!lua flags=allow-oom
-- The user wants something of a job. A queued job is cancelled at once; an ended one stays as it is,
-- and so does the wish to cancel.
-- KEYS: job      ARGV: requested, now
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
  return
end
if redis.call('HGET', KEYS[1], 'requested') ~= '"cancel"' then
  redis.call('HSET', KEYS[1], 'requested', ARGV[1])
end
if state == '"queued"' and ARGV[1] == '"cancel"' then
  redis.call('HSET', KEYS[1], 'state', '"cancelled"', 'finished_at', ARGV[2])
end
