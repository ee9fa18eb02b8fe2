#!lua flags=allow-oom
-- Tell how a rollout answered the probes, while the job has a policy; the newest reports are kept.
-- KEYS: parity, policy      ARGV: how many to keep, frame fields...
if redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', unpack(ARGV, 2))
return 1
