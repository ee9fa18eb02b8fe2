#!lua flags=allow-oom
-- Show life; learn who else has shown life, and which of our entries others have taken over.
-- Consumers that show no life and have nothing are deleted: each would make every heartbeat slower.
-- Who finds an entry taken over is not dead: a death that was counted against the entry is taken back.
-- KEYS: lives, faults, inputs...
-- ARGV: group, me, '1' if we may claim, number of inputs, input names..., then input index and id of each entry
local group, me = ARGV[1], ARGV[2]
local beats = math.abs(tonumber(redis.call('HGET', KEYS[1], me) or '0') or 0) + 1
redis.call('HSET', KEYS[1], me, ARGV[3] == '1' and beats or -beats)

local function take_back(fault)
  local deaths = redis.call('HGET', KEYS[2], fault)
  if deaths then
    local kept = {}
    for life in string.gmatch(deaths, '%S+') do
      if life ~= me then
        table.insert(kept, life)
      end
    end
    redis.call('HSET', KEYS[2], fault, table.concat(kept, ' '))
  end
end

local num_inputs = tonumber(ARGV[4])
local lost = {}
for i = 5 + num_inputs, #ARGV, 2 do
  local index, id = tonumber(ARGV[i]), ARGV[i + 1]
  local rows = redis.pcall('XPENDING', KEYS[2 + index], group, id, id, 1)
  if rows.err or not rows[1] or rows[1][2] ~= me then
    table.insert(lost, {ARGV[i], id})
    take_back(ARGV[4 + index] .. '|' .. id .. '|deaths')
  end
end

local lives = redis.call('HGETALL', KEYS[1])
for index = 1, num_inputs do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[2 + index], group)
  for _, consumer in ipairs(consumers.err and {} or consumers) do
    local name, pending = consumer[2], consumer[4]
    if name ~= 'released' and redis.call('HEXISTS', KEYS[1], name) == 0 then
      if pending > 0 then
        table.insert(lives, name)
        table.insert(lives, '0')
      else  -- with entries they would be lost; a claim makes it again
        redis.call('XGROUP', 'DELCONSUMER', KEYS[2 + index], group, name)
      end
    end
  end
end
return {lives, lost}
