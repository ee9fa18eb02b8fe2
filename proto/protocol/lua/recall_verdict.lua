-- A verdict that was remembered, which thereby counts as used now, unless the memory is full.
-- KEYS: verdicts, verdict_uses      ARGV: digest, now
local verdict = redis.call('HGET', KEYS[1], ARGV[1])
if verdict then
  redis.pcall('ZADD', KEYS[2], 'XX', ARGV[2], ARGV[1])
end
return verdict
