-- The jobs that have not ended and whose recipe holds a text.
-- KEYS: jobs      ARGV: what records' keys begin with, text
local ids = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local readable, id = pcall(function() return cjson.decode(entry[2][2])['body']['job_id'] end)
  local record = ARGV[1] .. (readable and id or '')
  local state, recipe = unpack(redis.call('HMGET', record, 'state', 'recipe'))
  if state and state ~= '"succeeded"' and state ~= '"failed"' and state ~= '"cancelled"'
    and recipe and string.find(recipe, ARGV[2], 1, true) then
    table.insert(ids, id)
  end
end
return ids
