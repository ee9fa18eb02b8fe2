#!lua flags=allow-oom
-- Tell how a rollout answered the probes, while the job has a policy; the newest reports are kept.
-- The policy is no key: a rollout may only read it.
-- KEYS: parity      ARGV: policy, how many to keep, frame fields...
if redis.call('XLEN', ARGV[1]) == 0 then
  return 0
end
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*', unpack(ARGV, 3))
return 1
