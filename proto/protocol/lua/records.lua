-- Records of jobs, each as names and values in turn, or else the values of the wanted fields.
-- KEYS: jobs' records...      ARGV: names of fields...
local records = {}
for _, key in ipairs(KEYS) do
  table.insert(records, #ARGV == 0 and redis.call('HGETALL', key) or redis.call('HMGET', key, unpack(ARGV)))
end
return records
