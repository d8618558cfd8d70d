-- The mutex machine: one string, owner#token, with a TTL. A hold acquired by plain commands is the owner
-- alone, without a token.
--
-- Twin of mutex.rs: the same functions in the same order, but inlined as sections, because defining a Lua
-- function costs the server as much as calling a command.
--
-- KEYS   1 the lock
--        2 the token counter, for acquire and detach; with a ballot: the highest ballot seen
-- ARGV   acquire owner request ttl_ms ballot            ballot: '' if the server assigns the token
--        renew   owner request ttl_ms [detach]          detach: assigns a token to a hold without one
--        release owner request ballot whose channel publish
--                whose: mine | anyone | foreign: anyone, and strings of other programs
--                publish: PUBLISH, or SPUBLISH on a cluster that has it
--        inspect owner request
-- Reply  { owner, request, answer, ... }. held and released are one string, separated by spaces, because
--        a list takes longer. The answers:
--        held token [new]      busy holder left_ms     free       released [unheard]
--        found mutex holder left_ms [unheard]          mismatch kind [capacity]
--        nolock type           behind ballot           ahead
--        new:     the token was drawn from the counter for this request
--        left_ms: -1 if there is no TTL
--        holder:  the first 1024 bytes of the value; for a hash its only field; otherwise the type, as (list)
--        unheard: the error with which publishing failed, or ''; present only if a hold ended
-- Message on the channel: the owner, or the value, whose hold ended.

local lock, counter = KEYS[1], KEYS[2]
local verb, owner, request = ARGV[1], ARGV[2], ARGV[3]

-- ownership: the lock from the requester's point of view.
-- held: the token of the requester's hold. theirs: the answer if the key has another value.
local value, held, theirs = redis.pcall('GET', lock), nil, nil
local is_text = type(value) == 'string'
local other, capacity
if is_text and #value <= 1024 and string.find(value, '#1:', 1, true) then
  -- A queue with one holder.
  other, capacity = string.match(value, '^[%w._%%:/-]*@[%w._-]*:%d+/%x+#1:([%a -]+):(%d+)%+%d+#?%d*$')
end
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    return value
  end
  -- other_kind: mismatch for a lock of this library, busy for a foreign value. After a mismatch, a client
  -- that inspects or ends the lock retries by its kind. Clients wait only for what may_be_lock: a hash,
  -- as Redisson writes it, or the queue of a later version.
  local type = redis.call('TYPE', lock).ok
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
  if not other and verb == 'acquire' and not may_be_lock then
    theirs = { owner, request, 'nolock', type }
  end
end
if other then
  value, theirs = nil, { owner, request, 'mismatch', other, capacity }
elseif is_text and string.sub(value, 1, #owner) == owner then
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
    -- assign: above the last token and not below the clock. Written before the lock itself. Also if the
    -- owner holds without a token, after plain commands whose reply was lost.
    local time = redis.call('TIME')
    local now, last = time[1] * 1000000 + time[2], tonumber(redis.call('GET', counter) or '0')
    if not last or last > now + 31536000000000 then
      return redis.error_reply('ERR the counter of tokens at ' .. counter .. ' is no number, or a year ahead of the clock; delete it')
    end
    token = string.format('%.0f', math.max(last + 1, now))
    redis.call('SET', counter, token)
  elseif ballot ~= '' and not (held and tonumber(ballot) <= tonumber(held)) then
    -- accept: a ballot above all that this node has seen. A node without a stored ballot decides by its
    -- clock.
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
    -- A hold that gets a new token must not have its lease shortened either.
    local left = held and redis.call('PTTL', lock) or 0
    redis.call('SET', lock, owner .. '#' .. token, 'PX', left > tonumber(ttl_ms) and left or ttl_ms)
    return owner .. ' ' .. request .. ' held ' .. token .. (ballot == '' and ' new' or '')
  end
  -- A repeated acquire: the same grant, renewed.
  verb = 'renew'
end

if verb == 'renew' then
  if held then
    -- extend: no request ever shortens a lease; only a release ends it.
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
    -- raise: even if nothing is held, because the acquire that this undoes may still be in flight.
    -- Ballots that would be rejected anyway are not stored: one far ahead would use up the numbers for
    -- every client, and an old one would become the only ballot of a node that has forgotten its own.
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
    -- By pcall, so that a release succeeds on a server that is out of memory. The ballot that it fails to
    -- store would only fend off an acquire that the server refuses too.
    local noted = raised and redis.pcall('SET', counter, raised, 'PX', '2592000000')
    local ends = held and whose == 'mine' and tonumber(held) <= tonumber(ballot)
    if type(noted) == 'table' and noted.err and not ends then
      return noted
    end
    -- ownership_for: a release undoes only grants of its ballot or a lower one. The owner may have sent a
    -- new request since, and that may have arrived first.
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

-- inspect, and release of anyone or foreign.
local answer
if not by then
  if not value then
    return theirs or { owner, request, 'free' }
  end
  answer = { owner, request, 'found', 'mutex', value, redis.call('PTTL', lock) }
  if verb == 'release' then
    -- is_lock: values of other programs are left alone, except strings if the request includes foreign
    -- ones.
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
  -- By pcall, because the hold is over even if the user may not publish.
  local told = redis.pcall(ARGV[7], ARGV[6], by)
  local unheard = type(told) == 'table' and told.err or ''
  if not answer and unheard == '' then
    return owner .. ' ' .. request .. ' released'
  end
  answer = answer or { owner, request, 'released' }
  answer[#answer + 1] = unheard
end
return answer
