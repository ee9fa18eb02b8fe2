#!lua flags=allow-oom
-- Tell whoever asked for a trial what became of it.
-- KEYS: the trial's      ARGV: text, seconds for which it is kept
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
