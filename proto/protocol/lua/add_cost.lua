#!lua flags=allow-oom
-- Add what a process has used to the cost of the active job, if there is one.
-- ARGV: active, key of a cost with %s for a job, field, seconds, field, seconds...
local active = redis.call('GET', ARGV[1])
if active then
  local cost = string.format(ARGV[2], cjson.decode(active).job_id)
  for i = 3, #ARGV, 2 do
    redis.call('HINCRBYFLOAT', cost, ARGV[i], ARGV[i + 1])
  end
end
