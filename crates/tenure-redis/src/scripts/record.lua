-- The record machine: one string beside a lock, which only the lock's holder may write. Twin of record.rs.
--
-- KEYS   1 the lock   2 its record
-- ARGV   put owner from to keep_ms then channel publish value
--                from, to: the window in which the write is accepted, in microseconds, or ''
--                then: '' | release, which ends the hold of a mutex | tell, which notifies subscribers
--        void '' channel publish
-- Reply  { owner, answer, ... }, where the answer is one of
--        stored now unheard    not_held    outside_window now       voided unheard
--        now:     the server's clock, in microseconds since 1970
--        unheard: the error with which publishing failed, or ''
-- Record: the time of the write (now) and the value, separated by a space.
-- Message on the channel: the owner that wrote, or nothing after void.

local lock, record, verb, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

-- By pcall, because the change is made even if the user may not publish.
local function tell(publish, channel)
  local told = redis.pcall(publish, channel, owner)
  return type(told) == 'table' and told.err or ''
end

if verb == 'void' then
  redis.call('DEL', record, lock)
  return { owner, 'voided', tell(ARGV[4], ARGV[3]) }
end

local from, to, keep_ms, next = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- refusal
local held, value = false, redis.pcall('GET', lock)
if type(value) == 'string' then
  held = value == owner or string.sub(value, 1, #owner + 1) == owner .. '#'
elseif value and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
  return value
elseif value and redis.call('TYPE', lock).ok == 'zset' then
  -- A queue: its ticket is at or below the mark and has not expired.
  local top = redis.call('ZRANGE', lock, 0, 0, 'WITHSCORES')
  local ticket = redis.call('ZMSCORE', lock, owner, '!' .. owner)
  held = string.sub(top[1], 1, 3) == '#1:' and ticket[1] and ticket[2] and tonumber(ticket[1]) <= 0 - top[2]
    and tonumber(ticket[2]) >= math.floor(now / 1000)
end
if not held then
  return { owner, 'not_held' }
end
local shown = string.format('%.0f', now)
if from ~= '' and (now < tonumber(from) or now >= tonumber(to)) then
  return { owner, 'outside_window', shown }
end

redis.call('SET', record, shown .. ' ' .. ARGV[9], 'PX', keep_ms)
local unheard = ''
if next == 'release' then
  redis.call('DEL', lock)
end
if next ~= '' then
  unheard = tell(ARGV[8], ARGV[7])
end
return { owner, 'stored', shown, unheard }
