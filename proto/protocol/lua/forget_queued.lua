-- Take a job out of the queue.
-- KEYS: jobs      ARGV: queue group, queue entry id
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
