-- Batched renewal of mutexes by their holders: the renew section of mutex.lua for each lock. For any other
-- value the reply is -, and a separate request to mutex.lua finds out why.
--
-- KEYS   the locks
-- ARGV   request ttl_ms owner...      an owner for each lock, in the same order
-- Reply  one string, separated by spaces: the first owner, the request, and for each lock
--        its token, if it is held      free: the key does not exist      -: the key has another value

local ttl_ms, reply = ARGV[2], { ARGV[3], ARGV[1] }
-- Redis 7 and Valkey have PEXPIRE GT, and REDIS_VERSION_NUM.
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
  -- extend: no request ever shortens a lease. GT leaves a key without a TTL unchanged.
  if said ~= '-' and said ~= 'free'
    and not (has_gt and redis.call('PEXPIRE', lock, ttl_ms, 'GT') == 1)
    and redis.call('PTTL', lock) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', lock, ttl_ms)
  end
  reply[i + 2] = said
end
return table.concat(reply, ' ')
