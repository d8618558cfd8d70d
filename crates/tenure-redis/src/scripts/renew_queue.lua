-- Batched renewal of queue holds: the renew verb of queue.lua for each lock, without sweep and promote,
-- which the requests of waiters run. For anything but a valid hold the reply is -, and a separate request
-- to queue.lua finds out why.
--
-- KEYS   the locks
-- ARGV   request ttl_ms, and for each lock, in the same order: header owner
-- Reply  one string, separated by spaces: the first owner, the request, and for each lock
--        its token, if it is held      -: otherwise

local ttl_ms, reply = tonumber(ARGV[2]), { ARGV[4], ARGV[1] }
-- Redis 7 and Valkey have PEXPIREAT GT, and REDIS_VERSION_NUM.
local has_gt = redis.REDIS_VERSION_NUM
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local until_ms = string.format('%.0f', now + ttl_ms)
for i = 1, #KEYS do
  local lock, header, owner = KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2]
  local ends, said = '!' .. owner, '-'
  local known = redis.pcall('ZMSCORE', lock, header, owner, ends)
  local mark, number, till = known[1], known[2], known[3]
  if number and not mark then
    -- The capacity may have been set explicitly since, which adds a = to the header.
    local first = redis.call('ZRANGE', lock, '0', '0', 'WITHSCORES')
    mark = string.match(first[1], '^(#1:.+:)=%d+$') == string.match(header, '^#1:.+:') and first[2]
  end
  if mark and number and till and tonumber(number) <= 0 - mark and tonumber(till) >= now then
    -- PEXPIREAT first: a server that is out of memory allows it, and ZADD only after another write.
    if not (has_gt and redis.call('PEXPIREAT', lock, until_ms, 'GT') == 1) and redis.call('PTTL', lock) < ttl_ms then
      redis.call('PEXPIREAT', lock, until_ms)
    end
    redis.call('ZADD', lock, 'XX', 'GT', until_ms, ends)
    said = number
  end
  reply[i + 2] = said
end
return table.concat(reply, ' ')
