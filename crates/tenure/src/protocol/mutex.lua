-- The mutex machine: one string, owner#token, with a TTL. Twin of mutex.rs: the same functions in the same order.
--
-- KEYS   1 the lock   2 its counter: for acquire, and for release with a ballot
-- ARGV   acquire owner request ttl_ms ballot         ballot: '' lets the server assign the token
--        renew   owner request ttl_ms
--        release owner request ballot whose channel  whose: mine | anyone
--        inspect owner request
-- Reply  { owner, request, answer, ... }, where the answer is one of
--        held token            busy holder left_ms     free       released unheard
--        found kind holder left_ms unheard             mismatch kind
--        behind ballot         ahead
--        left_ms: -1 where there is no TTL
--        holder:  the value, its first SHOWN bytes; of what is no string the type, as (hash)
--        unheard: '', or why those who wait could not be told
-- Message on the channel: the owner or the value whose hold ended.

local FENCE_MS, BALLOT_MS = '3600000', '2592000000'
local BALLOT_BEHIND_US, BALLOT_AHEAD_US = 10000000, 31536000000000
local SHOWN = 1024

local lock, counter, owner, request = KEYS[1], KEYS[2], ARGV[2], ARGV[3]

-- What stands at a key that holds no string: the error if that is not why, another kind of ours, or a foreign type.
local function other(failed)
  if not string.find(failed.err, '^WRONGTYPE') then
    return failed
  end
  local type = redis.call('TYPE', lock).ok
  if type == 'hash' and redis.call('HEXISTS', lock, '#fence') == 1 then
    return nil, 'reentrant mutex'
  end
  return nil, nil, '(' .. type .. ')'
end

-- What stands at the key, as the asker sees it: nothing, 'mine' and the token, or 'theirs' and the answer.
local function standing()
  local value = redis.pcall('GET', lock)
  if not value then
    return nil
  end
  if type(value) == 'table' then
    local failed, kind, foreign = other(value)
    if not foreign then
      return 'theirs', failed or { owner, request, 'mismatch', kind }
    end
    value = foreign
  elseif string.sub(value, 1, #owner) == owner then
    local rest = string.sub(value, #owner + 1)
    if rest == '' then
      return 'mine', '0'
    elseif string.sub(rest, 1, 1) == '#' then
      return 'mine', string.match(rest, '^#(%d+)$') or '0'
    end
  end
  return 'theirs', { owner, request, 'busy', string.sub(value, 1, SHOWN), redis.call('PTTL', lock) }
end

-- The next token: above the last one and not below the clock. Written before the lock itself, and as an integer: Lua
-- would print 1.8e+15.
local function assign()
  local time = redis.call('TIME')
  local next = time[1] * 1000000 + time[2]
  local token = string.format('%.0f', next)
  local last = tonumber(redis.call('SET', counter, token, 'PX', FENCE_MS, 'GET') or '')
  if last and last >= next then
    token = string.format('%.0f', last + 1)
    redis.call('SET', counter, token, 'PX', FENCE_MS)
  end
  return token
end

-- Takes a ballot if it is above all this node has seen; else returns the answer that refuses it.
local function accept(ballot)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local stored = tonumber(redis.call('GET', counter) or '') or now - BALLOT_BEHIND_US
  if tonumber(ballot) <= stored then
    return { owner, request, 'behind', string.format('%.0f', stored) }
  end
  if tonumber(ballot) > now + BALLOT_AHEAD_US then
    return { owner, request, 'ahead' }
  end
  redis.call('SET', counter, ballot, 'PX', BALLOT_MS)
end

-- No request ever shortens a lease; only release ends one.
local function extend(ttl_ms)
  if redis.call('PTTL', lock) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', lock, ttl_ms)
  end
end

local function acquire()
  local ttl_ms, ballot = ARGV[4], ARGV[5]
  local stands, held = standing()
  if stands == 'theirs' then
    return held
  end
  local token
  if ballot == '' then
    token = held or assign()
  elseif held and tonumber(ballot) <= tonumber(held) then
    token = held
  else
    local refused = accept(ballot)
    if refused then
      return refused
    end
    token = ballot
  end
  if token == held then
    extend(ttl_ms)
  else
    -- A ballot accepted anew by its own holder must not shorten the lease either.
    local left = held and redis.call('PTTL', lock) or 0
    redis.call('SET', lock, owner .. '#' .. token, 'PX', left > tonumber(ttl_ms) and left or ttl_ms)
  end
  return { owner, request, 'held', token }
end

local function renew()
  local stands, held = standing()
  if stands == 'mine' then
    extend(ARGV[4])
    return { owner, request, 'held', held }
  end
  return held or { owner, request, 'free' }
end

local function inspect()
  local value, kind, failed = redis.pcall('GET', lock), 'mutex', nil
  if not value then
    return { owner, request, 'free' }
  end
  if type(value) == 'table' then
    local another, foreign
    failed, another, foreign = other(value)
    kind, value = another or kind, foreign or ''
  end
  return failed or { owner, request, 'found', kind, string.sub(value, 1, SHOWN), redis.call('PTTL', lock) }
end

-- By pcall: a release stays a release where the user has no right to the channel.
local function wake(by)
  local told = redis.pcall('PUBLISH', ARGV[6], by)
  return type(told) == 'table' and told.err or ''
end

local function release()
  local ballot, whose = ARGV[4], ARGV[5]
  if ballot ~= '' then
    -- Also where nothing is held: the acquire that this undoes may still be on its way.
    local stored = redis.call('GET', counter)
    local raised = tonumber(ballot) >= (tonumber(stored or '') or 0) and ballot or stored
    redis.call('SET', counter, raised, 'PX', BALLOT_MS)
  end
  if whose == 'mine' then
    local stands, held = standing()
    if stands == 'mine' then
      redis.call('DEL', lock)
      return { owner, request, 'released', wake(owner) }
    end
    return held or { owner, request, 'free' }
  end
  local found = inspect()
  if found[3] == 'found' then
    redis.call('DEL', lock)
    found[7] = wake(found[5])
  end
  return found
end

return ({ acquire = acquire, renew = renew, release = release, inspect = inspect })[ARGV[1]]()
