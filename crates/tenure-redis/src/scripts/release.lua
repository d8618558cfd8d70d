-- The release of a mutex by its holder: the section of mutex.lua, and no more. Where the owner does
-- not hold, mutex.lua decides.
--
-- KEYS   1 the lock
-- ARGV   owner request channel publish      publish: PUBLISH, or SPUBLISH on a cluster that has it
-- Reply  as that of mutex.lua: released [unheard]; nothing where the owner does not hold
-- Message on the channel: the owner.

local owner, value = ARGV[1], redis.pcall('GET', KEYS[1])
if value ~= owner and (type(value) ~= 'string' or string.sub(value, 1, #owner + 1) ~= owner .. '#') then
  return false
end
redis.call('DEL', KEYS[1])
-- By pcall: a release stays a release where the user has no right to the channel.
local told = redis.pcall(ARGV[4], ARGV[3], owner)
if type(told) == 'table' and told.err then
  return { owner, ARGV[2], 'released', told.err }
end
return owner .. ' ' .. ARGV[2] .. ' released'
