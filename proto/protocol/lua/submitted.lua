-- The newest job that the same request made since a moment, and that was not cancelled.
-- KEYS: job_index      ARGV: what records' keys begin with, seconds since 1970, request
for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', ARGV[2])) do
  local record = ARGV[1] .. id
  if redis.call('HGET', record, 'request') == ARGV[3] and redis.call('HGET', record, 'requested') ~= '"cancel"' then
    return id
  end
end
return false
