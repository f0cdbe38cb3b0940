-- Look at a lock, and change nothing.
--
-- KEYS    1 lock   2 fence counter
-- ANSWER  held <remaining ms, -1 without end> <fence, 0 if unknown> <owner>
--         free

local owner = redis.pcall('GET', KEYS[1])
if not owner then
  return {ok = 'free'}
end
if type(owner) ~= 'string' then
  owner = '?' -- some other kind of lock lives under this key: a hash, say
end
local fence = redis.call('GET', KEYS[2]) or '0'
return {ok = 'held ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. fence .. ' ' .. string.sub(owner, 1, 512)}
