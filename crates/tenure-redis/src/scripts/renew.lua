-- Batched renewal of mutexes and holds in queues by their holders: the renew section of mutex.lua and queue.lua for
-- each lock, without sweep and promote, which the requests of waiters run. For any other state the reply is -, and
-- a separate request to the machine finds out why.
--
-- KEYS   the locks
-- ARGV   request ttl_ms, and for each lock, in the same order: owner solo
--        solo: of a queue, what follows the owner in a string, #1:KIND:CAPACITY+WEIGHT; of a mutex ''
-- Reply  one string, separated by spaces: the first owner, the request, and for each lock
--        its token, if it is held      free: the key does not exist      -: otherwise

local ttl_ms, reply = ARGV[2], { ARGV[3], ARGV[1] }
-- Redis 7 and Valkey have GT, and REDIS_VERSION_NUM.
local has_gt, now, till = redis.REDIS_VERSION_NUM, nil, nil
for i = 1, #KEYS do
  local lock, owner, solo, said = KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2], '-'
  local is_set = solo ~= '' and redis.call('TYPE', lock).ok == 'zset'
  if is_set then
    -- Its ticket is at or below the mark and has not expired.
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
      till = string.format('%.0f', now + ttl_ms)
    end
    local known = redis.call('ZMSCORE', lock, string.match(solo, '^[^+]+'), owner, '!' .. owner)
    local mark, number, ends = known[1], known[2], known[3]
    if number and not mark then
      -- The capacity may have been set explicitly since, which adds a = to the header.
      local first = redis.call('ZRANGE', lock, '0', '0', 'WITHSCORES')
      mark = string.match(first[1], '^(#1:.+:)=%d+$') == string.match(solo, '^#1:.+:') and first[2]
    end
    if mark and number and ends and tonumber(number) <= 0 - mark and tonumber(ends) >= now then
      said = number
    end
  else
    local mine, value = owner .. solo, redis.pcall('GET', lock)
    if value == mine then
      said = '0'
    elseif not value then
      said = 'free'
    elseif type(value) == 'string' and string.sub(value, 1, #mine) == mine then
      said = string.match(value, '^#(%d+)$', #mine + 1) or '-'
    end
  end
  -- extend: no request ever shortens a lease. GT leaves a key without a TTL unchanged. Before ZADD, which a
  -- server that is out of memory allows only after another write.
  if said ~= '-' and said ~= 'free' then
    if not (has_gt and redis.call('PEXPIRE', lock, ttl_ms, 'GT') == 1) and redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    if is_set then
      redis.call('ZADD', lock, 'XX', 'GT', till, '!' .. owner)
    end
  end
  reply[i + 2] = said
end
return table.concat(reply, ' ')
