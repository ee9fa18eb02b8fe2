#!lua flags=allow-oom
-- Store the tokens of a job's ledgers in its cost, unless the job is forgotten.
-- ARGV: job, cost, names and numbers...
if redis.call('HGET', ARGV[1], 'state') then
  redis.call('HSET', ARGV[2], unpack(ARGV, 3))
end
