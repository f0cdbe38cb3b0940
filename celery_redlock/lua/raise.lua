-- Lift the fence counter of a node that numbered the grant lower than another node did.
--
-- KEYS    1 lock   2 fence counter
-- ARGV    1 owner   2 fence   3 ttl of the counter in ms
-- ANSWER  raised
--         gone: the lock is not the owner's any more
--
-- Only while the lock is still the owner's: a late write would number the next holder's grant, and
-- then two grants can come out in the wrong order.

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return {ok = 'gone'}
end
local last = tonumber(redis.call('GET', KEYS[2])) or 0
redis.call('SET', KEYS[2], string.format('%.0f', math.max(last, tonumber(ARGV[2]))), 'PX', ARGV[3])
return {ok = 'raised'}
