#!lua flags=allow-oom
-- A worker has shown no life: what it held is released, and counts as held through a death.
-- KEYS: lives, faults, inputs...      ARGV: group, the worker, its beats when last seen, input names...
local group, dead = ARGV[1], ARGV[2]
if (redis.call('HGET', KEYS[1], dead) or '0') ~= ARGV[3] then
  return -1  -- it has shown life since
end
redis.call('HDEL', KEYS[1], dead)
local released = 0
for index = 3, #KEYS do
  local rows = redis.pcall('XPENDING', KEYS[index], group, '-', '+', 1000, dead)
  while not rows.err and #rows > 0 do
    for _, row in ipairs(rows) do
      local fault = ARGV[index + 1] .. '|' .. row[1] .. '|deaths'
      local before = redis.call('HGET', KEYS[2], fault)
      redis.call('HSET', KEYS[2], fault, before and before .. ' ' .. dead or dead)
      redis.call('XCLAIM', KEYS[index], group, 'released', 0, row[1], 'JUSTID')
      released = released + 1
    end
    rows = redis.pcall('XPENDING', KEYS[index], group, '-', '+', 1000, dead)
  end
end
return released
