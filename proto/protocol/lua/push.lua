#!lua flags=allow-oom
-- Tell whoever asked, by a list that expires.
-- KEYS: the list      ARGV: text, seconds for which it is kept
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
