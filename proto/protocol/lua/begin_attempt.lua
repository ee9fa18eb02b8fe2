-- A life of the learner begins: it gets the next attempt number, which fences every earlier one.
-- KEYS: job
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'attempts_since_checkpoint', 1)
return redis.call('HINCRBY', KEYS[1], 'attempt', 1)
