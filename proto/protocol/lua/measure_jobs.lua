-- How much memory jobs that have ended take, newest first: ids and bytes in turn; of any other 0 bytes.
-- KEYS: job_index      ARGV: what records' keys begin with, keys of events with %s for a job..., first rank, last rank
local flat = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], ARGV[#ARGV - 1], ARGV[#ARGV])) do
  local record = ARGV[1] .. id
  local state, bytes = redis.call('HGET', record, 'state'), 0
  if state ~= '"queued"' and state ~= '"running"' and state ~= '"paused"' then
    bytes = redis.call('MEMORY', 'USAGE', record) or 0
    for i = 2, #ARGV - 2 do
      bytes = bytes + (redis.call('MEMORY', 'USAGE', string.format(ARGV[i], id)) or 0)
    end
  end
  table.insert(flat, id)
  table.insert(flat, bytes)
end
return flat
