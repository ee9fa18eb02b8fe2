#!lua flags=allow-oom
-- Take back a call: its place in the queue is passed over once it has no body.
-- KEYS: bodies, the calls that its gateway waits for      ARGV: id
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
