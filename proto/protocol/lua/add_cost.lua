#!lua flags=allow-oom
-- Add what a service has used to the cost of the active job, if there is one.
-- ARGV: active, key of a cost with %s for a job, service, core-seconds, GPU-seconds
local active = redis.call('GET', ARGV[1])
if active then
  local cost = string.format(ARGV[2], cjson.decode(active).job_id)
  redis.call('HINCRBYFLOAT', cost, 'core_seconds:' .. ARGV[3], ARGV[4])
  if tonumber(ARGV[5]) > 0 then
    redis.call('HINCRBYFLOAT', cost, 'gpu_seconds:' .. ARGV[3], ARGV[5])
  end
end
