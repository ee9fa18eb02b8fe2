-- Which job of the queue would be taken up next, as `next_job` has it, which have been begun and not ended,
-- and which can run, in order.
-- KEYS: jobs, held_up      ARGV: what records' keys begin with
local first, first_held_up
local begun, order = {}, {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local readable, id = pcall(function() return cjson.decode(entry[2][2])['body']['job_id'] end)
  local record = ARGV[1] .. (readable and id or '')
  local state, requested, attempt = unpack(redis.call('HMGET', record, 'state', 'requested', 'attempt'))
  if state and state ~= '"succeeded"' and state ~= '"failed"' and state ~= '"cancelled"' then
    if attempt ~= '0' then
      table.insert(begun, id)
    end
    if requested ~= '"pause"' then
      if requested ~= '"cancel"' and redis.call('SISMEMBER', KEYS[2], id) == 1 then
        first_held_up = first_held_up or id
      else
        first = first or id
        table.insert(order, id)
      end
    end
  end
end
return {first or first_held_up or '', begun, order}
