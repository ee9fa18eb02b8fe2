-- How full a work stream is; of its oldest entry the age in milliseconds and the group's key.
-- KEYS: stream      ARGV: group
local length = redis.call('XLEN', KEYS[1])
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then
  return {length, 0, 0, ''}
end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
local now = redis.call('TIME')
local age = now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(string.match(oldest[1], '^%d+'))
local key = ''
for i = 1, #oldest[2], 2 do
  if oldest[2][i] == 'key' then
    key = oldest[2][i + 1]
  end
end
return {length, pending.err and 0 or pending[1], math.max(0, age), key}
