#!lua flags=allow-oom
-- Add what a service has used to the cost of the job that the learner works on, if there is one.
-- ARGV: billed, key of a cost with %s for a job, names and numbers...
local job = redis.call('GET', ARGV[1])
for i = 3, job and #ARGV or 0, 2 do
  if tonumber(ARGV[i + 1]) > 0 then
    redis.call('HINCRBYFLOAT', string.format(ARGV[2], job), ARGV[i], ARGV[i + 1])
  end
end
