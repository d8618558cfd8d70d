-- The reentrant machine: one hash, owner -> hold count, with a TTL, in the format of Redisson's RLock.
-- Twin of reentrant.rs: the same functions in the same order, inlined as sections (see mutex.lua).
--
-- Fields of the hash: OWNER, its hold count; and those of tenure, which begin with #: #fence, the token;
-- #HOLD, a counted hold; #0, the number of detached holds. The hash is never left with only fields of
-- tenure, which to Redisson would be a lock without a holder.
--
-- KEYS   1 the lock   2 the token counter, for acquire
-- ARGV   acquire owner request hold ttl_ms
--        renew   owner request hold ttl_ms bind      bind: detach | resume | ''
--        release owner request hold whose channel publish
--                whose: mine | anyone                publish: PUBLISH, or SPUBLISH on a cluster that has it
--        inspect owner request
--        hold: a number in lower-case hexadecimal, not 0; for a release of anyone the token to end, or 0 for any
-- Reply  { owner, request, answer, ... }. held and released are one string, separated by spaces, because
--        a list takes longer. The answers:
--        held token        busy holder left_ms        free        released left [unheard]
--        found reentrant mutex holder left_ms count [unheard]          mismatch kind [capacity]
--        nolock type
--        holder:  owner#token; the only field of a foreign client's hash; otherwise the type, as (hash)
--        left_ms: -1 if there is no TTL
--        unheard: the error with which publishing failed, or ''; present only if a hold ended
-- Message on the channel: 0, when the lock becomes free.

local lock, counter, call = KEYS[1], KEYS[2], redis.call
local verb, owner, request, hold = ARGV[1], ARGV[2], ARGV[3], '#' .. (ARGV[4] or '')
local looks = verb == 'inspect' or ARGV[5] == 'anyone'

-- ownership: the lock from the requester's point of view.
-- count: its holds. found: the holder, for inspect and release of anyone. theirs: the answer if another
-- owner holds. An acquire checks the TTL first, because mostly the key does not exist.
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
    -- found, holder: the holder in the format of a mutex's value, or the type if the hash is not a Redisson
    -- lock either.
    -- is_lock: a token, and a single owner of this library, with a count.
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
    -- other_kind: mismatch for a lock of this library, busy for a foreign value. After a mismatch, a client
    -- that inspects or ends the lock retries by its kind.
    local kind, capacity, holder = 'mutex', nil, '(' .. type .. ')'
    local may_be_lock = type == 'string'
    if type == 'zset' then
      local first = call('ZRANGE', lock, 0, 0)[1]
      kind, capacity = string.match(first, '^#1:([%a -]+):=?(%d+)$')
      kind, holder = kind or 'mutex', not kind and holder
      -- The queue of a later version.
      may_be_lock = string.match(first, '^#%d+:')
    elseif type == 'string' then
      holder = call('GETRANGE', lock, 0, 1023)
      local who, host, id, rest = string.match(holder, '^([%w._%%:/-]*)@([%w._-]*):%d+/([0-9a-f]+)(.*)$')
      if who and #who <= 833 and #host <= 64 and #id == 32 and (rest == '' or string.match(rest, '^#%d+$')) then
        holder = nil
      elseif who and string.find(rest, '^#1:[%a -]+:%d+%+%d+#?%d*$') then
        -- A queue with one holder.
        kind, capacity = string.match(rest, '^#1:(.+):(%d+)')
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
    -- By pcall, to delete the key if its TTL cannot be set.
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
    -- A detached hold loses its number, because the client that resumes it uses another.
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
  -- extend: no request ever shortens a lease, because the owner's other holds rely on it.
  if (left_ms or call('PTTL', lock)) < tonumber(ARGV[5]) then
    call('PEXPIRE', lock, ARGV[5])
  end
  return owner .. ' ' .. request .. ' held ' .. (fence or '0')
end

-- inspect and release.
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
-- By pcall, because the hold is over even if the user may not publish.
local told = redis.pcall(ARGV[7], ARGV[6], '0')
local unheard = type(told) == 'table' and told.err or ''
if not answer and unheard == '' then
  return owner .. ' ' .. request .. ' released 0'
end
answer = answer or { owner, request, 'released', 0 }
answer[#answer + 1] = unheard
return answer
