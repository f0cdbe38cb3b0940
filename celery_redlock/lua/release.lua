-- Delete the lock, but only its owner's: compare and delete.
--
-- KEYS    1 lock
-- ARGV    1 owner
-- ANSWER  released
--         gone: it is free, or another's

if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {ok = 'released'}
end
return {ok = 'gone'}
