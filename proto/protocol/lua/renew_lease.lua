#!lua flags=allow-oom
-- Hold the lease on the learner's role, or show that one still does: the count of heartbeats grows.
-- It is taken if nobody holds it, or in the place of a holder that has not moved from a count.
-- KEYS: lease      ARGV: me, the holder to replace, its count
local lease = redis.call('HMGET', KEYS[1], 'holder', 'beats')
local holder, beats = lease[1], lease[2]
if not holder or holder == ARGV[1] or (holder == ARGV[2] and beats == ARGV[3]) then
  redis.call('HSET', KEYS[1], 'holder', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'beats', 1)
end
return redis.call('HMGET', KEYS[1], 'holder', 'beats')
