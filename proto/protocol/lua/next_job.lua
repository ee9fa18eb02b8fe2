#!lua flags=allow-oom
-- The job to work on: the active one, else the oldest of the queue. One that is paused keeps its place and
-- is passed over; so is one that was held up, until a job makes way or all that could run are held up.
-- What has ended leaves the queue. Only the learner asks, while it works on no job.
-- KEYS: jobs, active, held_up, billed      ARGV: what records' keys begin with
local active = redis.call('GET', KEYS[2])
active = active and cjson.decode(active)['job_id']
local first, first_held_up
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local readable, id = pcall(function() return cjson.decode(entry[2][2])['body']['job_id'] end)
  local record = ARGV[1] .. (readable and id or '')
  local state, requested = unpack(redis.call('HMGET', record, 'state', 'requested'))
  if not state or state == '"succeeded"' or state == '"failed"' or state == '"cancelled"' then
    redis.call('XDEL', KEYS[1], entry[1])
  elseif requested == '"pause"' then
    if state ~= '"paused"' then  -- its learner ended before it could obey
      redis.call('HSET', record, 'state', '"paused"', 'attempts_since_checkpoint', '0')
    end
    if id == active then
      redis.call('DEL', KEYS[2], KEYS[4])
    end
  elseif id == active then
    return {entry[1], id}
  elseif requested ~= '"cancel"' and redis.call('SISMEMBER', KEYS[3], id) == 1 then
    first_held_up = first_held_up or {entry[1], id}
  else
    first = first or {entry[1], id}
  end
end
if first then
  return first
end
redis.call('DEL', KEYS[3], KEYS[4])
return first_held_up
