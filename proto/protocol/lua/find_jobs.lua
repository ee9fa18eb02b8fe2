-- Up to so many jobs after one, newest first, that may be of a kind; it looks at a bounded number.
-- Returns whom it looked at last, '' if there are no more, and who was found; nothing if there is no such job.
-- KEYS: job_index
-- ARGV: what records' keys begin with, after whom ('': the newest), how many to find, how many to look at,
--   states ('': any), a text of the id, the recipe or the request in lower case ('': any), text of the recipe,
--   texts of the request...
local first = 0
if ARGV[2] ~= '' then
  local place = redis.call('ZREVRANK', KEYS[1], ARGV[2])
  if not place then
    return false
  end
  first = place + 1
end

local function may_be(id)
  if ARGV[5] ~= '' and not string.find(ARGV[5], redis.call('HGET', ARGV[1] .. id, 'state') or '?', 1, true) then
    return false
  end
  if ARGV[6] == '' and ARGV[7] == '' and #ARGV == 7 then
    return true
  end
  local recipe, request = unpack(redis.call('HMGET', ARGV[1] .. id, 'recipe', 'request'))
  recipe, request = recipe or '', request or ''
  for i = 8, #ARGV do
    if not string.find(request, ARGV[i], 1, true) then
      return false
    end
  end
  return string.find(recipe, ARGV[7], 1, true)
    and (ARGV[6] == '' or string.find(string.lower(id .. recipe .. request), ARGV[6], 1, true))
end

local ids = redis.call('ZREVRANGE', KEYS[1], first, first + ARGV[4] - 1)
local found = {}
for _, id in ipairs(ids) do
  if may_be(id) then
    table.insert(found, id)
  end
  if #found == tonumber(ARGV[3]) then
    return {id, found}
  end
end
return {#ids == tonumber(ARGV[4]) and ids[#ids] or '', found}
