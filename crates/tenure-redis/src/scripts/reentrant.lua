-- The reentrant machine: one hash, owner -> hold count, with a TTL, as Redisson's RLock writes it.
-- Twin of reentrant.rs: its functions in the same order, as sections.
--
-- The hash: OWNER, how often it holds; and fields of tenure, which begin with #: #fence, the token;
-- #HOLD, a hold that is counted; #0, how many holds are detached. It is never left with fields of
-- tenure alone.
--
-- KEYS   1 the lock   2 the counter of tokens: for acquire
-- ARGV   acquire owner request hold ttl_ms
--        renew   owner request hold ttl_ms bind      bind: detach | resume | ''
--        release owner request hold whose channel publish
--                whose: mine | anyone                publish: PUBLISH, or SPUBLISH on a cluster that has it
--        inspect owner request
--        hold: a number in lower-case hexadecimal, not 0; for a release of anyone the token that is to end, or 0 for any
-- Reply  { owner, request, answer, ... }, and held and released as one string, with spaces, because a list takes longer;
--        where the answer is one of
--        held token        busy holder left_ms        free        released left [unheard]
--        found reentrant mutex holder left_ms count unheard            mismatch kind [capacity]
--        holder:  owner#token; a foreign client's only field; of what is neither the type, as (hash)
--        left_ms: -1 where there is no TTL
--        unheard: '', or why those who wait could not be told; only where a hold has ended
-- Message on the channel: 0, where a lock has become free.

local lock, counter, call = KEYS[1], KEYS[2], redis.call
local verb, owner, request, hold = ARGV[1], ARGV[2], ARGV[3], '#' .. (ARGV[4] or '')
local looks = verb == 'inspect' or ARGV[5] == 'anyone'

-- standing: what is at the key, as the asker sees it. Count: how often it holds. Found: who does,
-- if others are meant as well; busy or mismatch, if another client has it. A client that acquires
-- mostly finds nothing.
local left_ms, fields = verb == 'acquire' and call('PTTL', lock), {}
if left_ms ~= -2 then
  fields = redis.pcall('HMGET', lock, owner, hold, '#fence', '#0')
end
local count, fence, found, theirs, is_lock = tonumber(fields[1]), fields[3], nil, nil, false
if not count or looks then
  if fields.err and string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then
    return fields
  end
  left_ms = left_ms or call('PTTL', lock)
  local type = fields.err and call('TYPE', lock).ok or 'hash'
  if left_ms == -2 then
    if verb ~= 'acquire' then
      return { owner, request, 'free' }
    end
  elseif type == 'hash' then
    -- found, holder: the holder, in the form of a mutex's value; of what is no lock of Redisson's
    -- either, the type.
    -- is_lock: a token, and one tenure owner with a count.
    local holder, times, ours, holders = '(hash)', '1', (tonumber(fence) or 0) > 0, 0
    if ours or call('HLEN', lock) == 1 then
      local all = call('HGETALL', lock)
      for i = 1, #all, 2 do
        if string.sub(all[i], 1, 1) ~= '#' then
          holder, times = string.sub(all[i], 1, 1024), #all[i + 1] < 20 and string.match(all[i + 1], '^%d+$') or '1'
          local who, host, id = string.match(holder, '^([%w._%%:/-]*)@([%w._-]*):%d+/([0-9a-f]+)$')
          holders = holders + 1
          is_lock = ours and holders == 1 and who and #who <= 833 and #host <= 64 and #id == 32
            and string.match(all[i + 1], '^%d+$')
        end
      end
      holder = ours and holder .. '#' .. fence or holder
    end
    found = { owner, request, 'found', 'reentrant mutex', holder, left_ms, times }
    theirs = { owner, request, 'busy', holder, left_ms }
  else
    -- other_kind: a mismatch where tenure wrote it, busy where it is foreign. A client that looks,
    -- or ends it, asks again by its kind.
    local kind, capacity, holder = 'mutex', nil, '(' .. type .. ')'
    local may_be_lock = type == 'string'
    if type == 'zset' then
      local first = call('ZRANGE', lock, 0, 0)[1]
      kind, capacity = string.match(first, '^#1:([%a -]+):=?(%d+)$')
      kind, holder = kind or 'mutex', not kind and holder
      -- A later version's queue.
      may_be_lock = string.match(first, '^#%d+:')
    elseif type == 'string' then
      holder = call('GETRANGE', lock, 0, 1023)
      local who, host, id, rest = string.match(holder, '^([%w._%%:/-]*)@([%w._-]*):%d+/([0-9a-f]+)(.*)$')
      if who and #who <= 833 and #host <= 64 and #id == 32 and (rest == '' or string.match(rest, '^#%d+$')) then
        holder = nil
      end
    end
    if holder and verb == 'acquire' and not may_be_lock then
      return { owner, request, 'nolock', type }
    elseif holder and not looks then
      return { owner, request, 'busy', holder, left_ms }
    end
    return { owner, request, 'mismatch', kind, capacity }
  end
end

if verb == 'acquire' then
  if theirs then
    return theirs
  elseif not count then
    -- assign: above the last token and not below the clock. Written before the lock itself.
    local time = call('TIME')
    local now, last = time[1] * 1000000 + time[2], tonumber(call('GET', counter) or '0')
    if not last or last > now + 31536000000000 then
      return redis.error_reply('ERR the counter of tokens at ' .. counter .. ' is no number, or a year ahead of the clock; delete it')
    end
    fence = string.format('%.0f', math.max(last + 1, now))
    call('SET', counter, fence)
    call('HSET', lock, owner, '1', hold, '1', '#fence', fence)
    -- By pcall: no key is left without an end.
    local set = redis.pcall('PEXPIRE', lock, ARGV[5])
    if type(set) == 'table' then
      call('DEL', lock)
      return set
    end
    return owner .. ' ' .. request .. ' held ' .. fence
  elseif not fields[2] then
    call('HSET', lock, owner, count + 1, hold, '1')
  end
elseif verb == 'renew' then
  local bind, detached = ARGV[6], tonumber(fields[4])
  if theirs then
    return theirs
  elseif bind == 'detach' and fields[2] then
    -- Detached, a hold loses its number: the client that resumes has another.
    call('HDEL', lock, hold)
    call('HSET', lock, '#0', (detached or 0) + 1)
  elseif bind == 'resume' and not fields[2] and detached then
    if detached > 1 then
      call('HSET', lock, '#0', detached - 1, hold, '1')
    else
      call('HDEL', lock, '#0')
      call('HSET', lock, hold, '1')
    end
  elseif not fields[2] and not (bind == 'detach' and detached) then
    return { owner, request, 'free' }
  end
end

if verb == 'acquire' or verb == 'renew' then
  -- extend: no request ever shortens a lease: the other holds of the same owner count on it.
  if (left_ms or call('PTTL', lock)) < tonumber(ARGV[5]) then
    call('PEXPIRE', lock, ARGV[5])
  end
  return owner .. ' ' .. request .. ' held ' .. (fence or '0')
end

-- release, and what inspect finds.
local answer = found
if verb == 'inspect' then
  return answer
elseif not looks then
  if theirs then
    return theirs
  elseif not fields[2] then
    return { owner, request, 'free' }
  elseif count > 1 then
    call('HDEL', lock, hold)
    call('HSET', lock, owner, count - 1)
    return owner .. ' ' .. request .. ' released ' .. count - 1
  end
elseif not is_lock or hold ~= '#0' and tonumber(ARGV[4], 16) ~= tonumber(fence) then
  return theirs
end
call('DEL', lock)
-- By pcall: a release stays a release where the user has no right to the channel.
local told = redis.pcall(ARGV[7], ARGV[6], '0')
local unheard = type(told) == 'table' and told.err or ''
if not answer and unheard == '' then
  return owner .. ' ' .. request .. ' released 0'
end
answer = answer or { owner, request, 'released', 0 }
answer[#answer + 1] = unheard
return answer
