#!lua flags=allow-oom
-- A worker leaves in good order: nobody need wait for its next sign of life.
-- KEYS: lives      ARGV: me
return redis.call('HDEL', KEYS[1], ARGV[1])
