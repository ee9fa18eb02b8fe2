-- Up to so many jobs after one, newest first, whose request holds all texts; it looks at a bounded number.
-- Returns whom it looked at last, '' if there are no more, and who was found; nothing if there is no such job.
-- KEYS: job_index
-- ARGV: what records' keys begin with, after whom ('': the newest), how many to find, how many to look at, texts...
local first = 0
if ARGV[2] ~= '' then
  local place = redis.call('ZREVRANK', KEYS[1], ARGV[2])
  if not place then
    return false
  end
  first = place + 1
end
local ids = redis.call('ZREVRANGE', KEYS[1], first, first + ARGV[4] - 1)
local found = {}
for place, id in ipairs(ids) do
  local holds_all = true
  if #ARGV > 4 then
    local request = redis.call('HGET', ARGV[1] .. id, 'request') or ''
    for i = 5, #ARGV do
      holds_all = holds_all and string.find(request, ARGV[i], 1, true)
    end
  end
  if holds_all then
    table.insert(found, id)
  end
  if #found == tonumber(ARGV[3]) then
    return {id, found}
  end
end
return {#ids == tonumber(ARGV[4]) and ids[#ids] or '', found}
