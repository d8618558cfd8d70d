-- Batched renewal of mutexes and holds in queues by their holders: the renew section of mutex.lua and queue.lua for
-- each lock, without sweep and promote, which the requests of waiters run. For any other state the reply is -, and
-- a separate request to the machine finds out why.
--
-- KEYS   the locks
-- ARGV   request ttl_ms, and for each lock, in the same order, its value while nobody waits, without a token:
--        of a mutex the owner, of a queue the owner and #1:KIND:CAPACITY+WEIGHT
-- Reply  one string, separated by spaces: the first owner, the request, and for each lock
--        its token, if it is held      free: the key does not exist      -: otherwise

local ttl_ms, time = ARGV[2], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local till = string.format('%.0f', now + ttl_ms)
-- One call for all, because a call costs more than what it does. A key of another type reads as missing.
local values, reply = redis.call('MGET', unpack(KEYS)), { string.match(ARGV[3], '^[^#]*'), ARGV[1] }
-- Redis 7 and Valkey have GT, and REDIS_VERSION_NUM.
local has_gt = redis.REDIS_VERSION_NUM
for i, lock in ipairs(KEYS) do
  local mine, value, said, ticket = ARGV[i + 2], values[i], '-', nil
  if value == mine then
    said = '0'
  elseif value then
    if string.sub(value, 1, #mine) == mine then
      said = string.match(value, '^#(%d+)$', #mine + 1) or '-'
    end
  else
    -- Without the right to ask, each asks alone.
    local type = redis.pcall('TYPE', lock).ok
    local owner, header = string.match(mine, '^([^#]+)(#1:.+)%+%d+$')
    if type == 'none' then
      said = 'free'
    elseif type == 'zset' and owner then
      -- Its ticket is at or below the mark and has not expired.
      local known = redis.call('ZMSCORE', lock, header, owner, '!' .. owner)
      local mark, number, ends = known[1], known[2], known[3]
      if number and not mark then
        -- The capacity may have been set explicitly since, which adds a = to the header.
        local first = redis.call('ZRANGE', lock, '0', '0', 'WITHSCORES')
        mark = string.match(first[1], '^(#1:.+:)=%d+$') == string.match(header, '^#1:.+:') and first[2]
      end
      if mark and number and ends and tonumber(number) <= 0 - mark and tonumber(ends) >= now then
        said, ticket = number, '!' .. owner
      end
    end
  end
  -- extend: no request ever shortens a lease. GT leaves a key without a TTL unchanged. Before ZADD, which a
  -- server that is out of memory allows only after another write.
  if said ~= '-' and said ~= 'free' then
    if not (has_gt and redis.call('PEXPIREAT', lock, till, 'GT') == 1) and redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIREAT', lock, till)
    end
    if ticket then
      redis.call('ZADD', lock, 'XX', 'GT', till, ticket)
    end
  end
  reply[i + 2] = said
end
return table.concat(reply, ' ')
