-- The release of a mutex by its holder: the section of mutex.lua, and no more. Where the owner does
-- not hold, mutex.lua decides. The client publishes, in the same write.
--
-- KEYS   1 the lock
-- ARGV   owner request; the request is not used, and tells requests apart in MONITOR
-- Reply  the value that was deleted; nothing where the owner does not hold

local owner, value = ARGV[1], redis.pcall('GET', KEYS[1])
if value ~= owner and (type(value) ~= 'string' or string.sub(value, 1, #owner + 1) ~= owner .. '#') then
  return false
end
redis.call('DEL', KEYS[1])
return value
