-- The mutex machine: one string, owner#token, with a TTL. Twin of mutex.rs: its functions in the
-- same order, as sections, because on the server to define a function costs as much as to call a
-- command. Who was granted by plain commands has written the owner alone.
--
-- KEYS   1 the lock
--        2 for acquire and detach, the counter of tokens; with a ballot, the highest ballot seen
-- ARGV   acquire owner request ttl_ms ballot         ballot: '' lets the server assign the token
--        renew   owner request ttl_ms detach      detach: the hold gets a token where it has none
--        release owner request ballot whose channel publish
--                whose: mine | anyone | foreign      publish: PUBLISH, or SPUBLISH on a cluster that has it
--        inspect owner request
-- Reply  { owner, request, answer, ... }, and held and released as one string, with spaces, because a list takes longer;
--        where the answer is one of
--        held token [new]      busy holder left_ms     free       released [unheard]
--        found mutex holder left_ms unheard            mismatch kind [capacity]
--        nolock type           behind ballot         ahead
--        new:     its token was counted for this request
--        left_ms: -1 where there is no TTL
--        holder:  the value, its first 1024 bytes; of a hash its only field; of anything else the type, as (list)
--        unheard: '', or why those who wait could not be told; only where a hold has ended
-- Message on the channel: the owner, or the value, whose hold has ended.

local lock, counter = KEYS[1], KEYS[2]
local verb, owner, request = ARGV[1], ARGV[2], ARGV[3]

-- standing: what is at the key, as the asker sees it. Held: the token of the asker's hold. Theirs:
-- the answer, if another client has it.
local value, held, theirs = redis.pcall('GET', lock), nil, nil
local is_text = type(value) == 'string'
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    return value
  end
  -- other_kind: a mismatch where tenure wrote it, busy where it is foreign. A client that looks, or
  -- ends it, asks again by its kind. What may_be_lock is waited for: a hash, as Redisson writes it,
  -- and the queue of a later version.
  local type, other, capacity = redis.call('TYPE', lock).ok, nil, nil
  local may_be_lock = type == 'hash'
  value = '(' .. type .. ')'
  if type == 'zset' then
    local first = redis.call('ZRANGE', lock, 0, 0)[1]
    other, capacity = string.match(first, '^#1:([%a -]+):=?(%d+)$')
    may_be_lock = string.match(first, '^#%d+:')
  elseif type == 'hash' then
    if verb == 'inspect' or verb == 'release' and ARGV[5] ~= 'mine' or (tonumber(redis.call('HGET', lock, '#fence') or '') or 0) > 0 then
      other = 'reentrant mutex'
    elseif redis.call('HLEN', lock) == 1 then
      local field = redis.call('HKEYS', lock)[1]
      value = string.sub(field, 1, 1) ~= '#' and field or value
    end
  end
  if other then
    value, theirs = nil, { owner, request, 'mismatch', other, capacity }
  elseif verb == 'acquire' and not may_be_lock then
    theirs = { owner, request, 'nolock', type }
  end
elseif value and string.sub(value, 1, #owner) == owner then
  if #value == #owner then
    held = '0'
  elseif string.sub(value, #owner + 1, #owner + 1) == '#' then
    held = string.match(value, '^%d+$', #owner + 2) or '0'
  end
end
if value and not held and not theirs then
  value = string.sub(value, 1, 1024)
  theirs = { owner, request, 'busy', value, redis.call('PTTL', lock) }
end

if verb == 'acquire' or held == '0' and ARGV[5] == 'detach' then
  if theirs then
    return theirs
  end
  local ttl_ms, ballot, token = ARGV[4], verb == 'acquire' and ARGV[5] or '', held
  if ballot == '' and (not held or held == '0') then
    -- assign: above the last token and not below the clock. Written before the lock itself. Also
    -- where its owner holds without a token: by plain commands, whose answer was lost.
    local time = redis.call('TIME')
    local now, last = time[1] * 1000000 + time[2], tonumber(redis.call('GET', counter) or '0')
    if not last or last > now + 31536000000000 then
      return redis.error_reply('ERR the counter of tokens at ' .. counter .. ' is no number, or a year ahead of the clock; delete it')
    end
    token = string.format('%.0f', math.max(last + 1, now))
    redis.call('SET', counter, token)
  elseif ballot ~= '' and not (held and tonumber(ballot) <= tonumber(held)) then
    -- accept: a ballot above all this node has seen. One that has seen none, or forgot, answers
    -- from its clock.
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local stored = tonumber(redis.call('GET', counter) or '') or now - 10000000
    if tonumber(ballot) <= stored then
      return { owner, request, 'behind', string.format('%.0f', stored) }
    end
    if tonumber(ballot) > now + 31536000000000 then
      return { owner, request, 'ahead' }
    end
    redis.call('SET', counter, ballot, 'PX', '2592000000')
    token = ballot
  end
  if token ~= held then
    -- A hold that gets another token must not have its lease shortened either.
    local left = held and redis.call('PTTL', lock) or 0
    redis.call('SET', lock, owner .. '#' .. token, 'PX', left > tonumber(ttl_ms) and left or ttl_ms)
    return owner .. ' ' .. request .. ' held ' .. token .. (ballot == '' and ' new' or '')
  end
  -- The same grant again.
  verb = 'renew'
end

if verb == 'renew' then
  if held then
    -- extend: no request ever shortens a lease; only release ends one.
    if redis.call('PTTL', lock) < tonumber(ARGV[4]) then
      redis.call('PEXPIRE', lock, ARGV[4])
    end
    return owner .. ' ' .. request .. ' held ' .. held
  end
  return theirs or { owner, request, 'free' }
end

local by
if verb == 'release' then
  local ballot, whose = ARGV[4], ARGV[5]
  if ballot ~= '' then
    -- raise: also where nothing is held, because the acquire that this undoes may still be on its
    -- way. What would be refused anyhow is not noted: a number that is far ahead would spend those
    -- of all, and one that is old would stand for all that a node has seen that forgot.
    local stored, raised = redis.call('GET', counter), nil
    local last = tonumber(stored or '')
    if last and tonumber(ballot) <= last then
      raised = stored
    else
      local time = redis.call('TIME')
      local now = time[1] * 1000000 + time[2]
      if tonumber(ballot) > (last or now - 10000000) and tonumber(ballot) <= now + 31536000000000 then
        raised = ballot
      end
    end
    -- By pcall: a server without memory takes back what it has given. All it fails to note then is
    -- the undo of an acquire that it would refuse too.
    local noted = raised and redis.pcall('SET', counter, raised, 'PX', '2592000000')
    local ends = held and whose == 'mine' and tonumber(held) <= tonumber(ballot)
    if type(noted) == 'table' and noted.err and not ends then
      return noted
    end
    -- standing_for: it gives back what was taken with its ballot or a lower one. The owner may have
    -- asked again since, and that request may have come first.
    if held and whose == 'mine' and not ends then
      return { owner, request, 'busy', value, redis.call('PTTL', lock) }
    end
  end
  if whose == 'mine' then
    if not held then
      return theirs or { owner, request, 'free' }
    end
    by = owner
  end
end

-- inspect, and what a release of anyone ends.
local answer
if not by then
  if not value then
    return theirs or { owner, request, 'free' }
  end
  answer = { owner, request, 'found', 'mutex', value, redis.call('PTTL', lock) }
  if verb == 'release' then
    -- is_lock: what another program wrote is left alone, unless it is a string and foreign ones are
    -- meant too.
    local who, host, id, rest = string.match(value, '^([%w._%%:/-]*)@([%w._-]*):%d+/([0-9a-f]+)(.*)$')
    local is_lock = who and #who <= 833 and #host <= 64 and #id == 32 and (rest == '' or string.match(rest, '^#%d+$'))
    if not is_lock and not (is_text and ARGV[5] == 'foreign') then
      return { owner, request, 'busy', value, answer[6] }
    end
  end
  by = value
end
if verb == 'release' then
  redis.call('DEL', lock)
  -- By pcall: a release stays a release where the user has no right to the channel.
  local told = redis.pcall(ARGV[7], ARGV[6], by)
  local unheard = type(told) == 'table' and told.err or ''
  if not answer and unheard == '' then
    return owner .. ' ' .. request .. ' released'
  end
  answer = answer or { owner, request, 'released' }
  answer[#answer + 1] = unheard
end
return answer
