#!lua flags=allow-oom
-- Take calls that wait for some weights, or tell how many wait for which, the oldest first.
-- KEYS: calls, bodies      ARGV: what they are for ('': anything), how many (0: look), the patience
local count, now, taken = tonumber(ARGV[2]), tonumber(redis.call('TIME')[1]), {}
local oldest, numbers, order = nil, {}, {}
local last = count == 0 and 255 or -1  -- a look is taken a hundred times a second
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, last)) do
  local readable, row = pcall(cjson.decode, entry)
  local served, id, since = unpack(readable and type(row) == 'table' and row or {})
  local is_call = type(served) == 'string' and type(id) == 'string' and type(since) == 'number'
  if not is_call or redis.call('HEXISTS', KEYS[2], id) == 0 then
    redis.call('LREM', KEYS[1], 1, entry)
  elseif count == 0 then
    if not numbers[served] then
      order[#order + 1] = served
    end
    numbers[served] = (numbers[served] or 0) + 1
  elseif ARGV[1] == '' or served == ARGV[1] then
    if oldest and now - oldest >= tonumber(ARGV[3]) then
      break
    end
    taken[#taken + 1] = redis.call('HGET', KEYS[2], id)
    redis.call('LREM', KEYS[1], 1, entry)
    redis.call('HDEL', KEYS[2], id)
    if #taken == count then
      break
    end
  else
    oldest = oldest or since
  end
end
for _, served in ipairs(order) do
  taken[#taken + 1] = served
  taken[#taken + 1] = numbers[served]
end
return taken
