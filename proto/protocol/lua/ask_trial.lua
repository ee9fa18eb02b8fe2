-- Ask for a trial of a grader, unless too many wait.
-- KEYS: trials      ARGV: trial, the most that may wait, seconds for which they are kept
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
