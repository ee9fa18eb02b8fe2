-- Claim entries whose worker has shown no life for a while. Each counts as a death of that worker,
-- unless it had released the entry or is the claimer itself (whose reply was lost on the way).
-- A server that has just come back has heard no heartbeat: then only released entries may be taken.
-- KEYS: input, faults      ARGV: group, me, min idle ms, count, input name
local up_s = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
local just_back = up_s * 1000 < tonumber(ARGV[3])
local claimed = {}
local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[4])
for _, row in ipairs(idle) do
  local id, owner = row[1], row[2]
  local entries = {}
  if owner == 'released' or not just_back then
    entries = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], id)
  end
  if entries[1] then
    local fault = ARGV[5] .. '|' .. id
    if owner ~= 'released' and owner ~= ARGV[2] then
      redis.call('HINCRBY', KEYS[2], fault .. '|deaths', 1)
    end
    local faults = redis.call('HMGET', KEYS[2], fault .. '|deaths', fault .. '|failures')
    table.insert(claimed, {id, entries[1][2], faults[1] or '0', faults[2] or '0'})
  end
end
return claimed
