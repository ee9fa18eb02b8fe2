-- How many jobs there are by state: states and counts in turn.
-- KEYS: job_index      ARGV: what records' keys begin with
local counts = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local state = redis.call('HGET', ARGV[1] .. id, 'state') or ''
  counts[state] = (counts[state] or 0) + 1
end
local flat = {}
for state, count in pairs(counts) do
  table.insert(flat, state)
  table.insert(flat, count)
end
return flat
