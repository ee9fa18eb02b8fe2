-- Records of jobs, each as names and values in turn; of one that does not exist there are none.
-- KEYS: jobs' records...
local records = {}
for _, key in ipairs(KEYS) do
  table.insert(records, redis.call('HGETALL', key))
end
return records
