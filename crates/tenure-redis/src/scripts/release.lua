-- The release of a mutex by its holder: only that section of mutex.lua, which decides if the owner does not
-- hold. The client publishes in the same write.
--
-- KEYS   1 the lock
-- ARGV   owner request; the request is unused, and identifies requests in MONITOR
-- Reply  the deleted value; nil if the owner does not hold

local owner, value = ARGV[1], redis.pcall('GET', KEYS[1])
if value ~= owner and (type(value) ~= 'string' or string.sub(value, 1, #owner + 1) ~= owner .. '#') then
  return false
end
redis.call('DEL', KEYS[1])
return value
