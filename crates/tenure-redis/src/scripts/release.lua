-- The release of a hold by its holder: only that section of mutex.lua or queue.lua, which decides if the key has
-- another value. For a mutex the client publishes in the same write.
--
-- KEYS   1 the lock
-- ARGV   value request; the value without its token, and the request only to identify requests in MONITOR
-- Reply  the deleted value; nil if the key has another one

local mine, value = ARGV[1], redis.pcall('GET', KEYS[1])
if value ~= mine and (type(value) ~= 'string' or string.sub(value, 1, #mine) ~= mine or not string.find(value, '^#%d+$', #mine + 1)) then
  return false
end
redis.call('DEL', KEYS[1])
return value
