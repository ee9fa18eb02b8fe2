-- Withdraw requests that nobody waits for; a worker that holds one learns it from its next heartbeat.
-- KEYS: requests, under_way, job, faults      ARGV: attempt, group, input name, keys of groups that stay...
local attempt = redis.call('HGET', KEYS[3], 'attempt')
if attempt ~= ARGV[1] then
  return redis.error_reply('FENCED attempt ' .. ARGV[1] .. ' gave way to ' .. tostring(attempt))
end
local stays = {}
for i = 4, #ARGV do
  stays[ARGV[i]] = true
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local id, key = entry[1], entry[2][2]
  if not stays[key] then
    local fault = ARGV[3] .. '|' .. id
    redis.call('XACK', KEYS[1], ARGV[2], id)
    redis.call('XDEL', KEYS[1], id)
    redis.call('SREM', KEYS[2], key)
    redis.call('HDEL', KEYS[4], fault .. '|deaths', fault .. '|failures')
  end
end
return 1
