#!lua flags=allow-oom
-- A worker where everything failed was itself at fault: its failures are taken back.
-- KEYS: faults      ARGV: the worker, input name and id of each entry...
for i = 2, #ARGV, 2 do
  local fault = ARGV[i] .. '|' .. ARGV[i + 1] .. '|failures'
  local kept = {}
  for life in string.gmatch(redis.call('HGET', KEYS[1], fault) or '', '%S+') do
    if life ~= ARGV[1] then
      table.insert(kept, life)
    end
  end
  redis.call('HDEL', KEYS[1], fault)
  if #kept > 0 then
    redis.call('HSET', KEYS[1], fault, table.concat(kept, ' '))
  end
end
return 1
