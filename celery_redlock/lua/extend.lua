-- Renew many leases; where a key is gone, put it back and say so.
--
-- KEYS    lock, fence counter of each lease
-- ARGV    1 ttl in ms   2 ttl of the counters in ms   then owner, fence of each lease
-- ANSWER  one letter for each lease:
--         h  held: it was there, and lives on
--         r  restored: it was absent, and is set again
--         o  other's: someone else's value is there

local answers = {}
for i = 1, #KEYS / 2 do
  local lock, counter = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, fence = ARGV[2 * i + 1], ARGV[2 * i + 2]
  local holder = redis.pcall('GET', lock)
  if holder == owner then
    redis.call('PEXPIRE', lock, ARGV[1])
    if redis.call('PEXPIRE', counter, ARGV[2]) == 0 then
      redis.call('SET', counter, fence, 'PX', ARGV[2])
    end
    answers[i] = 'h'
  elseif not holder then
    local last = tonumber(redis.call('GET', counter)) or 0
    redis.call('SET', lock, owner, 'PX', ARGV[1])
    redis.call('SET', counter, string.format('%.0f', math.max(last, tonumber(fence))), 'PX', ARGV[2])
    answers[i] = 'r'
  else
    answers[i] = 'o'
  end
end
return {ok = table.concat(answers)}
