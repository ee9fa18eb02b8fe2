-- Queue a job once, however often its submission is repeated.
-- KEYS: job, jobs, job_index      ARGV: job id, created at, number n of names and values, those, frame fields...
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local last = 3 + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], unpack(ARGV, 4, last))
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('XADD', KEYS[2], '*', unpack(ARGV, last + 1))
return 1
