-- Give up the lease on the learner's role, if it is ours.
-- KEYS: lease      ARGV: me
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
