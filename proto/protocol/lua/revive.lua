-- Queue a failed job again, once, however often that is repeated; any other job stays as it is.
-- KEYS: job, jobs      ARGV: frame fields...
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= '"failed"' then
  return state
end
redis.call('XADD', KEYS[2], '*', unpack(ARGV))
redis.call('HSET', KEYS[1], 'state', '"queued"', 'requested', '"run"', 'error', 'null',
  'fault', 'null', 'finished_at', 'null', 'failures', '0', 'attempts_since_checkpoint', '0')
return '"queued"'
