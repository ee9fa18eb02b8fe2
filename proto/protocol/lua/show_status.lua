#!lua flags=allow-oom
-- Say what a process is doing, also when memory is full: then most of all somebody asks.
-- KEYS: status      ARGV: replica, status
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
