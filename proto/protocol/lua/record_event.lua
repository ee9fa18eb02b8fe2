-- Record an event once, however often it is reported.
-- KEYS: events, event_ids      ARGV: event id, frame fields...
if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
return 1
