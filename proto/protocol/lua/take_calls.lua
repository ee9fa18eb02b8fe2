#!lua flags=allow-oom
-- Take calls that wait for some weights, or the oldest whatever it waits for, or look at that.
-- KEYS: calls, bodies      ARGV: what they are for ('': anything), how many (0: look), the patience
local count, now, taken = tonumber(ARGV[2]), tonumber(redis.call('TIME')[1]), {}
local oldest = nil
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local served, id, since = unpack(cjson.decode(entry))
  local body = redis.call('HGET', KEYS[2], id)
  if not body then
    redis.call('LREM', KEYS[1], 1, entry)
  elseif count == 0 then
    return {body}
  elseif ARGV[1] == '' or served == ARGV[1] then
    if oldest and now - oldest >= tonumber(ARGV[3]) then
      break
    end
    redis.call('LREM', KEYS[1], 1, entry)
    redis.call('HDEL', KEYS[2], id)
    taken[#taken + 1] = body
    if #taken == count then
      break
    end
  else
    oldest = oldest or since
  end
end
return taken
