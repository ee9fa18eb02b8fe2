#!lua flags=allow-oom
-- Make a work stream and the group that shares it. When memory is full too: a learner that comes
-- back then is the one who will drain it.
-- KEYS: stream      ARGV: group
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return made
end
return 1
