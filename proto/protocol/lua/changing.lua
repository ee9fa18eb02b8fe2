-- Some fields of jobs' records, each a list; nothing in place of what is not there.
-- KEYS: jobs' records...      ARGV: names of fields...
local found = {}
for _, key in ipairs(KEYS) do
  table.insert(found, redis.call('HMGET', key, unpack(ARGV)))
end
return found
