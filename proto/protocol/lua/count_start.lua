#!lua flags=allow-oom
-- Count that a process has started; one that starts again and again must show when memory is full.
-- KEYS: starts      ARGV: service
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
return 1
