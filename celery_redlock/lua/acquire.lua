-- Take the lock if nobody holds it, and number the grant.
--
-- KEYS    1 lock   2 fence counter
-- ARGV    1 owner   2 ttl in ms   3 proposed fence in µs   4 ttl of the counter in ms
-- ANSWER  granted <fence>
--         refused <remaining ms, -1 without end> <owner>
--
-- The proposal is the client's wall clock. It is held to within a minute of the server's, so that
-- one wrong clock cannot push the numbers of this key into the future for ever.

if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local proposed = math.min(math.max(tonumber(ARGV[3]), now - 60000000), now + 60000000)
  local last = tonumber(redis.call('GET', KEYS[2])) or 0
  local fence = string.format('%.0f', math.max(last + 1, proposed))
  redis.call('SET', KEYS[2], fence, 'PX', ARGV[4])
  return {ok = 'granted ' .. fence}
end

local owner = redis.pcall('GET', KEYS[1])
if type(owner) ~= 'string' then
  owner = '?' -- some other kind of lock lives under this key: a hash, say
end
return {ok = 'refused ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. string.sub(owner, 1, 512)}
