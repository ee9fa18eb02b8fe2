#!lua flags=allow-oom
-- Add what a service has used to the cost of a job, unless the job is forgotten.
-- ARGV: job, cost, names and numbers...
for i = 3, redis.call('HGET', ARGV[1], 'state') and #ARGV or 0, 2 do
  if tonumber(ARGV[i + 1]) > 0 then
    redis.call('HINCRBYFLOAT', ARGV[2], ARGV[i], ARGV[i + 1])
  end
end
