-- Remember a verdict, and forget those used longest ago until what is left fits.
-- KEYS: verdicts, verdict_uses, verdict_bytes      ARGV: digest, verdict, now, max bytes
local overhead = 256  -- of an entry in a hash and a sorted set, about
local function size(digest)
  local length = redis.call('HSTRLEN', KEYS[1], digest)
  return length > 0 and length + overhead or 0
end
local before = size(ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
local bytes = redis.call('INCRBY', KEYS[3], size(ARGV[1]) - before)
while bytes > tonumber(ARGV[4]) do
  local oldest = redis.call('ZPOPMIN', KEYS[2])
  if #oldest == 0 then
    break
  end
  bytes = redis.call('DECRBY', KEYS[3], size(oldest[1]))
  redis.call('HDEL', KEYS[1], oldest[1])
end
return bytes
