-- Claim the oldest entry that was released and may be ours, or that is ours without our knowledge
-- (the reply to its claim was lost). An entry that failed on our replica, or was held through two deaths
-- with one of them here, is left to the other replicas that have not had it yet, if there are any.
-- KEYS: input, faults      ARGV: group, me, my replica, input name, '1' for only such entries,
--                               number of other replicas, those replicas..., ids that we hold...
local group, me, my_replica = ARGV[1], ARGV[2], ARGV[3]
local only_troubled, num_others = ARGV[5] == '1', tonumber(ARGV[6])
local held = {}
for i = 7 + num_others, #ARGV do
  held[ARGV[i]] = true
end

local function replicas_of(lives)
  local replicas, count = {}, 0
  for life in string.gmatch(lives or '', '%S+') do
    replicas[string.match(life, '^(.*)%.[^.]*$') or life] = true
    count = count + 1
  end
  return replicas, count
end

-- Whether the entry is ours to try, and whether it has been tried often enough to be troubled.
local function may_try(lives, at_least)
  local replicas, count = replicas_of(lives)
  if count < at_least or not replicas[my_replica] then
    return true, count >= at_least
  end
  for i = 7, 6 + num_others do
    if not replicas[ARGV[i]] then
      return false
    end
  end
  return true, true
end

for _, owner in ipairs({me, 'released'}) do
  for _, row in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', 1000, owner)) do
    local id = row[1]
    local fault = ARGV[4] .. '|' .. id
    local faults = redis.call('HMGET', KEYS[2], fault .. '|deaths', fault .. '|failures')
    local after_deaths, died = may_try(faults[1], 2)
    local after_failures, failed = may_try(faults[2], 1)
    local is_wanted = owner == me or not only_troubled or died or failed
    if not held[id] and after_deaths and after_failures and is_wanted then
      local claimed = redis.call('XCLAIM', KEYS[1], group, me, 0, id)[1]
      if claimed then
        return {id, claimed[2], faults[1] or '', faults[2] or ''}
      end
    end
  end
end
return false
