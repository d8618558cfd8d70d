-- The renewal of many mutexes by their holders: that section of mutex.lua for each of them, and no
-- more. Of a lock that has another value, mutex.lua says what stands there.
--
-- KEYS   the locks
-- ARGV   request ttl_ms owner...      an owner for each lock, in their order
-- Reply  one string, with spaces: the first owner, the request, and for each lock
--        its token, if it is held      free: nothing is at the key      -: something else is

local ttl_ms, reply = ARGV[2], { ARGV[3], ARGV[1] }
-- Redis 7 and Valkey have GT, and there a script knows its server's version.
local has_gt = redis.REDIS_VERSION_NUM
for i = 1, #KEYS do
  local lock, owner, said = KEYS[i], ARGV[i + 2], '-'
  local value = redis.pcall('GET', lock)
  if value == owner then
    said = '0'
  elseif not value then
    said = 'free'
  elseif type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. '#' then
    said = string.match(value, '^%d+$', #owner + 2) or '0'
  end
  -- extend: no request ever shortens a lease. GT leaves a key alone that has no end.
  if said ~= '-' and said ~= 'free'
    and not (has_gt and redis.call('PEXPIRE', lock, ttl_ms, 'GT') == 1)
    and redis.call('PTTL', lock) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', lock, ttl_ms)
  end
  reply[i + 2] = said
end
return table.concat(reply, ' ')
