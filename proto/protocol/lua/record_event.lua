#!lua flags=allow-oom
-- Record an event once, however often it is reported. The newest are kept, and their ids with them.
-- KEYS: events, event_ids      ARGV: how many to keep, event id, frame fields...
if redis.call('SADD', KEYS[2], ARGV[2]) == 0 then
  return 0
end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
local surplus = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[1])
if surplus > 0 then
  -- A stream that was longer than that gets shorter with every event, without a long pause.
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(surplus, 10))) do
    redis.call('XDEL', KEYS[1], entry[1])
    local readable, id = pcall(function() return cjson.decode(entry[2][2])['body']['id'] end)
    if readable and type(id) == 'string' then
      redis.call('SREM', KEYS[2], id)
    end
  end
end
return 1
