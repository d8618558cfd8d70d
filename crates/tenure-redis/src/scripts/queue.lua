-- The queue machine: one holder without waiters in a string, and otherwise tickets in one sorted set, both with a
-- TTL. Twin of queue.rs: the same functions, but inlined as sections, in the order in which a request passes
-- through them, because defining a Lua function costs the server as much as calling a command.
--
-- The string: OWNER#1:KIND:CAPACITY+WEIGHT#TOKEN. Plain commands write it without #TOKEN. It becomes a set when
-- another client asks for the lock.
--
-- Members of the set, by score:
--   <= 0     the negated score is the value of
--              #1:KIND:CAPACITY    the header: the mark, which is the number of the last admitted ticket
--              #1:KIND:=CAPACITY   the same if the capacity was set explicitly: it overrides that of the
--                                  clients, and the set is kept without tickets
--              #used               the total weight of the holders
--            These two come first, and after them the ticket that expires next.
--   >= 1e10  !OWNER: when its ticket expires, in ms. The fraction, in 4096ths, is where its client listens: a
--            number derived from the server's run_id and from PUBLISH or SPUBLISH; 0 if unknown. A refresh that
--            says where sets 13.5 s in place of wait_ms, and a grant shortens that to 5 s
--   >= 1e14  OWNER: the number of its ticket, which holds if it is at or below the mark
--   >= 8e15  +OWNER: 8e15 plus the weight of its ticket, if that is not 1
--
-- Only inspect and a release of anyone read an amount that grows with the queue.
--
-- KEYS   1 the lock   2 the token counter, for acquire, resize, and a renewal that detaches or changes the weight
-- ARGV   acquire owner request header capacity channel publish ttl_ms weight wait_ms listens
--        renew   owner request header capacity channel publish ttl_ms weight
--                weight: '' leaves it unchanged. A ticket with more than half of a read-write lock may become
--                heavier, and is growing while that does not fit beside the other holders
--        refresh owner request header capacity channel publish wait_ms listens owner...
--                wait_ms: 0 leaves the places unchanged
--        release owner request header capacity channel publish whose
--                whose: mine | anyone | named: mine, requested by another client
--        resize  owner request header capacity channel publish kept_ms                 header: with the =
--        inspect owner request header capacity channel publish
--        header:  #1:KIND:CAPACITY, where KIND is fair mutex, read-write lock or semaphore
--        publish: PUBLISH, or SPUBLISH on a cluster that has it
--        wait_ms: '' in an acquire that does not queue
--        listens: as for !OWNER; '' if the client does not listen, or PUBLISH does not count all subscribers
-- Reply  { owner, request, answer, ... }. held, waiting, growing and released are one string, separated by
--        spaces, because a list takes longer. The answers:
--        held token [new]      waiting ticket retry_in_ms      busy holder left_ms        free        released        resized
--        growing token retry_in_ms
--        places mark retry_in_ms ticket...                     mismatch kind [capacity]                          nolock type
--        found kind capacity { holder, left_ms, weight ... } { waiter, left_ms, weight ... } unlisted
--        Each may be followed by more, if the script reached a limit and the client has to retry at once, and
--        by the error with which notifying a holder failed.
--        new:         the token was drawn from the counter for this request
--        ticket:      '' if it is gone
--        retry_in_ms: -1 for all but the head of the queue
--        left_ms:     -1 if there is no TTL
-- Message on the channel, a colon and the client, which is the first 10 of the last 20 digits of its owners:
-- those of its tickets that now hold, separated by commas. An empty one: one of its holds may have been
-- released by another client.

local lock, counter, call = KEYS[1], KEYS[2], redis.call
local verb, owner, request, header, capacity = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local looks = verb == 'inspect' or ARGV[8] == 'anyone'
local follows = verb == 'resize'
local ends = '!' .. owner

local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
if now_us < 1e14 then
  return redis.error_reply('ERR the clock of this server is before March 1973, and a queue counts by it')
end

local top, value = redis.pcall('ZRANGE', lock, '0', '2', 'WITHSCORES'), nil
if top.err and string.sub(top.err, 1, 9) == 'WRONGTYPE' then
  value = redis.pcall('GET', lock)
  if type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    return value
  end
end

-- solo: a string with one holder. It is answered as it is, or becomes a set.
if type(value) == 'string' and #value <= 1024 and string.find(value, '#1:', 1, true) then
  local holder, its, weight, token = string.match(value, '^([%w._%%:/-]*@[%w._-]*:%d+/%x+)(#1:[%a -]+:%d+)%+(%d+)#?(%d*)$')
  local kind, of = string.match(its or '', '^#1:(.+):(%d+)$')
  local left_ms, mine, number = holder and call('PTTL', lock), holder == owner, token == '' and '0' or token
  if holder and not looks and its ~= header and not (follows and kind == string.match(header, '^#1:(.+):')) then
    return { owner, request, 'mismatch', kind, of }
  elseif holder and (looks or mine and verb == 'release') then
    local one = { holder .. '#' .. number, left_ms, tonumber(weight) }
    local answer = looks and { owner, request, 'found', kind, of, one, {}, 0 } or { owner, request, 'released' }
    if verb == 'release' then
      call('DEL', lock)
      -- By pcall, because the hold is over even if the user may not publish. The empty message makes the
      -- holder's client check its holds at once.
      local told = ARGV[8] ~= 'mine' and redis.pcall(ARGV[7], ARGV[6] .. ':' .. string.sub(holder, -20, -11), '')
      answer[#answer + 1] = type(told) == 'table' and told.err or nil
    end
    return answer
  elseif mine and verb == 'renew' and not counter or holder and verb == 'refresh' and (token == '' or ARGV[8] == '0') then
    local answer, asks = { owner, request, 'places', number, -1 }, verb == 'renew'
    for i = 10, asks and 0 or #ARGV do
      asks = asks or ARGV[i] == holder
      answer[#answer + 1] = ARGV[i] == holder and number or ''
    end
    -- extend: no request ever shortens a lease.
    if asks and left_ms >= 0 and left_ms < tonumber(ARGV[8]) then
      call('PEXPIRE', lock, ARGV[8])
    end
    return verb == 'refresh' and answer or owner .. ' ' .. request .. ' held ' .. number
  elseif holder and (counter or token ~= '') then
    -- A cluster that moves the slot takes new keys only on the next node, so a string that is deleted here could
    -- not be followed by a set.
    local elsewhere = string.find(counter or '', '}$') and redis.pcall('PTTL', counter .. ':')
    if type(elsewhere) == 'table' and string.find(elsewhere.err, 'non local key', 1, true) then
      return verb == 'acquire' and not mine and { owner, request, 'busy', holder, left_ms }
        or redis.error_reply('TRYAGAIN the slot of this lock is being moved')
    end
    if token == '' then
      -- number_bare: drawn now, and so above the token that plain commands have drawn.
      local last = tonumber(call('GET', counter) or '0')
      if not last or last > now_us + 31536000000000 then
        return redis.error_reply('ERR the counter of tokens at ' .. counter .. ' is no number, or a year ahead of the clock; delete it')
      end
      token = string.format('%.0f', math.max(last + 1, now_us))
      call('SET', counter, token)
    end
    -- By the clock after PTTL, so that its lease does not end before the TTL did.
    local later = call('TIME')
    local till = left_ms < 0 and 9e13 or later[1] * 1000 + math.floor(later[2] / 1000) + left_ms
    call('DEL', lock)
    call('ZADD', lock, '-' .. token, its, '-' .. weight, '#used', token, holder, till, '!' .. holder)
    if weight ~= '1' then
      call('ZADD', lock, weight + 8e15, '+' .. holder)
    end
    call('PEXPIREAT', lock, till)
    top = call('ZRANGE', lock, '0', '2', 'WITHSCORES')
  elseif holder then
    -- No request without the counter is about another ticket than the holder's.
    top = {}
  end
end

-- mismatch: the key is not a queue of this kind and capacity. Inspection is always allowed, and an
-- explicitly set capacity is adopted.
if top[1] ~= header and (top[1] or top.err) then
  if top.err and string.sub(top.err, 1, 9) ~= 'WRONGTYPE' then
    return top
  end
  local type, kind, holder, may_be_lock = call('TYPE', lock).ok, 'mutex', nil, true
  if type == 'zset' then
    local ours, set, of = string.match(top[1], '^#1:([%a -]+):(=?)(%d+)$')
    local is_set = set == '='
    if not ours then
      -- The queue of a later version may be a lock.
      holder, may_be_lock = '(zset)', string.match(top[1], '^#%d+:')
    elseif looks or (is_set or follows) and ours == string.match(header, '^#1:(.+):') then
      header, capacity, follows = top[1], tonumber(of), follows or is_set
    else
      local longest = is_set and { '', now } or call('ZRANGE', lock, '(1e14', '1e10', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')
      if longest[2] and tonumber(longest[2]) >= now then
        return { owner, request, 'mismatch', ours, of }
      end
      -- Every ticket has expired: the newcomer's kind and capacity apply.
      call('UNLINK', lock)
      top = {}
    end
  elseif type == 'string' then
    holder = string.sub(value, 1, 1024)
    local who, host, id, rest = string.match(holder, '^([%w._%%:/-]*)@([%w._-]*):%d+/([0-9a-f]+)(.*)$')
    if who and #who <= 833 and #host <= 64 and #id == 32 and (rest == '' or string.match(rest, '^#%d+$')) then
      holder = nil
    end
  elseif type == 'hash' then
    kind = 'reentrant mutex'
    if (tonumber(call('HGET', lock, '#fence') or '') or 0) == 0 then
      local field = call('HLEN', lock) == 1 and string.sub(call('HKEYS', lock)[1], 1, 1024) or '#'
      holder = string.sub(field, 1, 1) ~= '#' and field or '(hash)'
    end
  else
    holder, may_be_lock = '(' .. type .. ')', false
  end
  if verb == 'acquire' and not may_be_lock then
    return { owner, request, 'nolock', type }
  elseif holder and not looks then
    return { owner, request, 'busy', holder, call('PTTL', lock) }
  elseif type ~= 'zset' or holder then
    return { owner, request, 'mismatch', kind }
  end
end

-- The state of the queue; a missing key is an empty queue. first: when the next ticket expires.
local is_new, mark, used, first, number, deadline = not top[1], 0, 0, nil, nil, nil
if not is_new then
  mark, used, first = 0 - top[2], 0 - top[4], tonumber(top[6])
  if verb == 'acquire' then
    number = call('ZSCORE', lock, owner)
    deadline = number and tonumber(call('ZSCORE', lock, ends))
  elseif not looks and verb ~= 'refresh' and verb ~= 'resize' then
    local own = call('ZMSCORE', lock, owner, ends)
    number, deadline = own[1], tonumber(own[2])
  end
end

-- found: up to 1,000 holders and waiters without expired ones, and the number of further ones. Examines up
-- to 8,000 tickets.
local answer = { owner, request, 'free' }
if looks and not is_new then
  local living, listed, holders, waiters, from = call('ZCOUNT', lock, now, '(1e14'), 0, {}, {}, '1e14'
  for _ = 1, living > 0 and 8 or 0 do
    local page, names = call('ZRANGE', lock, from, '(8e15', 'BYSCORE', 'LIMIT', '0', '1000', 'WITHSCORES'), {}
    for i = 1, #page, 2 do
      names[i], names[i + 1] = '!' .. page[i], '+' .. page[i]
    end
    local known = #names > 0 and call('ZMSCORE', lock, unpack(names)) or {}
    for i = 1, #page, 2 do
      local till, weight = tonumber(known[i]), known[i + 1]
      if till and till >= now and listed < 1000 then
        local list = tonumber(page[i + 1]) <= mark and holders or waiters
        local n = #list
        list[n + 1], list[n + 2], list[n + 3] = page[i] .. '#' .. page[i + 1], till - now, weight and weight - 8e15 or 1
        listed = listed + 1
      end
    end
    if listed == 1000 or #page < 2000 then
      break
    end
    from = '(' .. page[#page]
  end
  if living > 0 then
    local kind, of = string.match(header, '^#1:(.+):=?(%d+)$')
    answer = { owner, request, 'found', kind, of, holders, waiters, living - listed }
  end
end
if verb == 'inspect' then
  return answer
end

-- sweep: removes up to 64 expired tickets. At that limit the answer says more, and the next request removes
-- the rest.
local mark_was, used_was, thinned, more, was_over, unheard = mark, used, false, false, used > capacity and string.format('%.0f', mark), nil
if first and first < now then
  local dead, names = call('ZRANGE', lock, '1e10', '(' .. now, 'BYSCORE', 'LIMIT', '0', '64'), {}
  for i = 1, #dead do
    local who = string.sub(dead[i], 2)
    names[2 * i - 1], names[2 * i] = who, '+' .. who
  end
  more = #dead == 64
  local known = call('ZMSCORE', lock, unpack(names))
  for i = 1, #names, 2 do
    if known[i] and tonumber(known[i]) <= mark then
      used = used - (known[i + 1] and known[i + 1] - 8e15 or 1)
    end
  end
  call('ZREM', lock, unpack(dead))
  call('ZREM', lock, unpack(names))
  thinned = true
  -- number_of: an expired ticket is removed here, even if the sweep did not reach it.
  if number and deadline < now then
    local weight = call('ZSCORE', lock, '+' .. owner)
    if call('ZREM', lock, owner, ends, '+' .. owner) > 0 and tonumber(number) <= mark then
      used = used - (weight and weight - 8e15 or 1)
    end
    number = nil
  end
  first = tonumber(call('ZRANGE', lock, '2', '2', 'WITHSCORES')[2])
  if not first and not follows then
    -- A queue swept empty has no kind. New numbers still start above its mark.
    call('DEL', lock)
    is_new, used = true, 0
  elseif used ~= used_was then
    -- Written now, because the commands below fail if the user may not access the counter.
    call('ZADD', lock, 0 - used, '#used')
    used_was = used
  end
end
if is_new and verb ~= 'acquire' and verb ~= 'resize' then
  if verb == 'refresh' then
    answer = { owner, request, 'places', '0', -1 }
    for i = 10, #ARGV do
      answer[#answer + 1] = ''
    end
  end
  if more then
    answer[#answer + 1] = 'more'
  end
  return answer
end

-- Verbs that may free permits, and refresh, which extends places before any waiter is admitted.
-- A server that is out of memory refuses ZADD, unless the script has already written by a command that needs
-- no memory. Extensions therefore begin with PEXPIREAT, or with a ZREM that removes nothing.
local lease_ms, due, mine, lasts, goes_on, weighs, grows = tonumber(ARGV[8]), nil, nil, first or 0, false, false, false
if verb == 'renew' then
  -- weigh
  local weight = ARGV[9] ~= '' and number and tonumber(number) <= mark and tonumber(ARGV[9])
  local old = weight and call('ZSCORE', lock, '+' .. owner)
  old, weighs = old and old - 8e15 or 1, weight
  local half = string.sub(header, 4, 7) == 'read' and capacity / 2 or 8e15
  grows = weight and old > half
  if weight and (weight < old or grows and weight <= capacity) then
    used = used - (old - weight)
    call('ZREM', lock, '+' .. owner)
    if weight ~= 1 then
      call('ZADD', lock, weight + 8e15, '+' .. owner)
    end
    grows = weight > half
  end
elseif verb == 'refresh' then
  local names, longer, until_ms, listens, latest = {}, {}, now + lease_ms, (tonumber(ARGV[9]) or 0) / 4096, 0
  for i = 10, #ARGV do
    names[#names + 1] = ARGV[i]
    names[#names + 1] = '!' .. ARGV[i]
  end
  local known = call('ZMSCORE', lock, unpack(names))
  answer = { owner, request, 'places', '0', -1 }
  mine = {}
  for i = 1, #names, 2 do
    local who, ticket, till = names[i], known[i], tonumber(known[i + 1])
    if ticket and till < now then
      -- number_of
      local weight = call('ZSCORE', lock, '+' .. who)
      if call('ZREM', lock, who, '!' .. who, '+' .. who) > 0 and tonumber(ticket) <= mark then
        used = used - (weight and weight - 8e15 or 1)
      end
      ticket, thinned = false, true
    elseif ticket and lease_ms > 0 then
      local ends_ms = math.max(math.floor(till), until_ms)
      if tonumber(ticket) > mark and listens > 0 and lease_ms >= 5000 then
        ends_ms = math.max(ends_ms, now + 13500)
      elseif tonumber(ticket) > mark and listens == 0 and till % 1 > 0 then
        ends_ms = math.max(math.min(ends_ms, now + 5000), until_ms)
      end
      if till ~= ends_ms + listens then
        longer[#longer + 1] = ends_ms + listens
        longer[#longer + 1] = '!' .. who
        latest = math.max(latest, ends_ms)
      end
    end
    answer[#answer + 1] = ticket or ''
    mine[ticket or ''] = true
  end
  if #longer > 0 then
    if call('PTTL', lock) < latest - now then
      call('PEXPIREAT', lock, latest)
    else
      call('ZREM', lock, '')
    end
    call('ZADD', lock, unpack(longer))
  end
elseif verb == 'release' and looks then
  -- Up to 250 holders. While more may be left, admit no waiter: the next request could not distinguish it
  -- from them.
  local holders, names = call('ZRANGE', lock, '1e14', string.format('%.0f', mark), 'BYSCORE', 'LIMIT', '0', '250'), {}
  for i = 1, #holders do
    names[3 * i - 2], names[3 * i - 1], names[3 * i] = '+' .. holders[i], holders[i], '!' .. holders[i]
  end
  if #holders > 0 then
    local known = call('ZMSCORE', lock, unpack(names))
    for i = 1, #known, 3 do
      used = used - (known[i] and known[i] - 8e15 or 1)
    end
    call('ZREM', lock, unpack(names))
  end
  for i = 1, #holders do
    -- The empty message makes their clients check their holds at once.
    local client = string.sub(holders[i], -20, -11)
    if not names[client] then
      names[client] = redis.pcall(ARGV[7], ARGV[6] .. ':' .. client, '')
      unheard = type(names[client]) == 'table' and names[client].err or unheard
    end
  end
  goes_on, thinned = #holders == 250, true
elseif verb == 'release' and number then
  local weight = (capacity > 1 or follows) and call('ZSCORE', lock, '+' .. owner)
  call('ZREM', lock, owner, ends, '+' .. owner)
  if tonumber(number) <= mark then
    used = used - (weight and weight - 8e15 or 1)
  end
  answer[3], thinned = 'released', true
  if ARGV[8] == 'named' then
    -- The empty message makes its client check its holds at once.
    local told = redis.pcall(ARGV[7], ARGV[6] .. ':' .. string.sub(owner, -20, -11), '')
    unheard = type(told) == 'table' and told.err or nil
  end
elseif verb == 'resize' then
  if not is_new then
    call('ZREM', lock, header)
  end
  header, capacity, due, answer[3] = ARGV[4], tonumber(ARGV[5]), now + lease_ms, 'resized'
  call('ZADD', lock, 0 - mark, header, 0 - used, '#used')
  mark_was, used_was = mark, used
end

-- promote: admits waiters from the head while they fit, up to 64, and notifies their clients, except for
-- tickets of the requester. Reads one ticket first, because mostly no second one fits. Publishes by pcall,
-- because the change is made even if the user may not publish.
local called, granted, let_in, here, vacant = {}, {}, 0, nil, used < capacity and not goes_on and 1 or 0
while vacant > 0 and not is_new do
  local waiting
  if capacity == 1 and not follows then
    -- No ticket holds: after header and #used come the deadlines, and then as many tickets.
    local at = tostring(call('ZCARD', lock) / 2 + 1)
    waiting = call('ZRANGE', lock, at, at, 'WITHSCORES')
  else
    waiting = call('ZRANGE', lock, string.format('(%.0f', mark), '(8e15', 'BYSCORE', 'LIMIT', '0', vacant, 'WITHSCORES')
  end
  local n, names, fits = #waiting / 2, {}, 0
  for i = 1, n do
    names[i] = '+' .. waiting[2 * i - 1]
  end
  local weights = n > 0 and (capacity > 1 or follows) and call('ZMSCORE', lock, unpack(names)) or {}
  for i = 1, n do
    local weight = weights[i] and weights[i] - 8e15 or 1 -- with a capacity of 1 all weigh 1
    -- A ticket that weighs more than the whole capacity, because that was reduced, is admitted alone.
    if used + math.min(weight, capacity) > capacity then
      break
    end
    used, mark, fits, let_in = used + weight, tonumber(waiting[2 * i]), i, let_in + 1
    granted[#granted + 1] = '!' .. waiting[2 * i - 1]
    if waiting[2 * i] ~= number and not (mine and mine[waiting[2 * i]]) then
      local client = string.sub(waiting[2 * i - 1], -20, -11)
      local its = called[client] or { numbers = {} }
      called[client], called[#called + 1] = its, not called[client] and client or nil
      its.numbers[#its.numbers + 1] = waiting[2 * i]
      its[#its + 1] = { waiting[2 * i - 1], weight }
    end
  end
  vacant = fits == vacant and math.min(64 - let_in, capacity - used) or 0
  if vacant <= 0 and mark ~= mark_was then
    -- Written before the first message, so that no client is notified of a grant that the server refuses.
    if answer[3] ~= 'released' then
      call('ZREM', lock, '')
    end
    call('ZADD', lock, 0 - mark, header, 0 - used, '#used')
    mark_was, used_was = mark, used
    -- Places that were kept for long: their clients may be gone.
    local known, shorter = call('ZMSCORE', lock, unpack(granted)), {}
    for i = 1, #granted do
      local till = tonumber(known[i] or 0)
      local short = now + 5000 + till % 1
      if till % 1 > 0 and till > short then
        shorter[#shorter + 1] = short
        shorter[#shorter + 1] = granted[i]
        first, deadline = math.min(first, short), granted[i] == ends and short or deadline
      end
    end
    if #shorter > 0 then
      call('ZADD', lock, unpack(shorter))
    end
    for i = 1, #called do
      local its = called[called[i]]
      local told = redis.pcall(ARGV[7], ARGV[6] .. ':' .. called[i], table.concat(its.numbers, ','))
      if type(told) == 'table' then
        unheard = told.err
      end
      for j = 1, told == 0 and #its or 0 do
        -- No subscriber received it. If the client said that it listens at this server, it is gone:
        -- remove the ticket and admit the next.
        local who, weight = its[j][1], its[j][2]
        local listens = (call('ZSCORE', lock, '!' .. who) or 0) % 1 * 4096
        if listens > 0 and here == nil then
          local server = redis.pcall('INFO', 'server')
          local id = type(server) == 'string' and tonumber(string.match(server, 'run_id:(%x%x%x)') or '', 16)
          here = id and id - id % 4 + (ARGV[7] == 'SPUBLISH' and 3 or 1)
        end
        if listens > 0 and listens == here then
          call('ZREM', lock, who, '!' .. who, '+' .. who)
          used, thinned = used - weight, true
        end
      end
    end
    called, granted = {}, {}
    if used ~= used_was then
      call('ZADD', lock, 0 - used, '#used')
      used_was, first = used, tonumber(call('ZRANGE', lock, '2', '2', 'WITHSCORES')[2])
      vacant = let_in < 64 and used < capacity and 1 or 0
      if not first and not follows then
        -- As for a queue that was swept empty.
        call('DEL', lock)
        is_new, used = true, 0
      end
    end
  end
end
more = more or goes_on or let_in == 64

-- acquire: creates a ticket, unless the owner has one, or does not queue and cannot hold at once.
local is_first, inserted = false, false
if verb == 'acquire' and not number then
  local weight, wait_ms, listens = tonumber(ARGV[9]), tonumber(ARGV[10]), (tonumber(ARGV[11]) or 0) / 4096
  local waits = false
  if capacity == 1 and not follows and not is_new then
    -- Without waiters there are at most four members: header, #used and two of a holder.
    waits = call('ZCARD', lock) > 4
  elseif not is_new then
    waits = call('ZCOUNT', lock, string.format('(%.0f', mark), '(8e15') > 0
  end
  local lets_in = not waits and used + weight <= capacity
  if weight > capacity then
    -- It would wait forever.
    answer = { owner, request, 'mismatch', string.match(header, '^#1:(.+):'), string.format('%.0f', capacity) }
  elseif lets_in or wait_ms then
    -- assign: not below the clock, above the last token, and above all tickets, because the counter may
    -- have been lost. Written before the ticket: first the clock, which mostly is the number.
    local ticket = now_us
    number = time[1] .. string.sub('00000' .. time[2], -6)
    local before = call('SET', counter, number, 'GET')
    local last = tonumber(before or '0')
    if not last or last > now_us + 31536000000000 then
      call('SET', counter, before)
      return redis.error_reply('ERR the counter of tokens at ' .. counter .. ' is no number, or a year ahead of the clock; delete it')
    end
    if last >= now_us or mark >= now_us or waits and call('ZCOUNT', lock, number, '(8e15') > 0 then
      local newest = call('ZRANGE', lock, '(8e15', '1e14', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
      ticket = math.max(last, mark, tonumber(newest or '0')) + 1
      number = string.format('%.0f', ticket)
      call('SET', counter, number)
    end
    if is_new then
      -- solo
      call('SET', lock, owner .. header .. '+' .. ARGV[9] .. '#' .. number, 'PX', ARGV[8])
      return owner .. ' ' .. request .. ' held ' .. number .. ' new' .. (more and ' more' or '')
    end
    due = now + (lets_in and lease_ms or wait_ms)
    if lets_in then
      mark, used = ticket, used + weight
    end
    if weight ~= 1 then
      call('ZADD', lock, weight + 8e15, '+' .. owner)
    end
    if lets_in then
      call('ZADD', lock, '-' .. number, header, 0 - used, '#used', number, owner, due, ends)
      mark_was, used_was = mark, used
    else
      call('ZADD', lock, number, owner, due + listens, ends)
    end
    if not first or due < first then
      first = due
    end
    is_first, inserted = not waits and not lets_in, true
    answer[3], answer[4] = lets_in and 'held' or 'waiting', number
  else
    -- busy: the first holder, in the form of a mutex's answer.
    local one = call('ZRANGE', lock, '1e14', '(8e15', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
    if one[1] then
      local left_ms = call('ZSCORE', lock, '!' .. one[1]) - now
      answer[3], answer[4], answer[5] = 'busy', one[1] .. '#' .. one[2], left_ms > 0 and left_ms or 0
    end
  end
elseif number and (verb == 'acquire' or verb == 'renew') then
  -- extend: no request ever shortens a lease. Renewals leave the lease of a waiter unchanged.
  local holds = tonumber(number) <= mark
  local term_ms = holds and lease_ms or verb == 'acquire' and tonumber(ARGV[10])
  local lives_until = term_ms and math.max(math.floor(deadline), now + term_ms)
  if term_ms and not holds then
    lives_until = lives_until + (tonumber(ARGV[11]) or 0) / 4096
  end
  if term_ms and (holds and lives_until > deadline or not holds and lives_until ~= deadline) then
    if call('PTTL', lock) < term_ms then
      call('PEXPIREAT', lock, now + term_ms)
    else
      call('ZREM', lock, '')
    end
    call('ZADD', lock, lives_until, ends)
  end
  is_first = not holds
  grows = grows and used > capacity
  answer[3], answer[4] = not holds and 'waiting' or grows and 'growing' or 'held', number
elseif mine then
  answer[4] = string.format('%.0f', mark)
  is_first = true
end

-- settle: removes an empty queue, unless its capacity was set explicitly, and makes the key expire with its
-- last ticket.
local is_over = is_new and not due
if not is_over and thinned and used == 0 and not follows and call('ZCARD', lock) == 2 then
  call('DEL', lock)
  is_over = true
end
if is_over then
  if more then
    answer[#answer + 1] = 'more'
  end
  return answer
end
if mark ~= mark_was or used ~= used_was then
  if not inserted and answer[3] ~= 'released' then
    call('ZREM', lock, '')
  end
  call('ZADD', lock, 0 - mark, header, 0 - used, '#used')
end
if is_new then
  -- By pcall, to delete the key if its TTL cannot be set.
  local set = redis.pcall('PEXPIREAT', lock, due)
  if type(set) == 'table' then
    call('DEL', lock)
    return set
  end
elseif due and due > lasts and call('PTTL', lock) < due - now then
  call('PEXPIREAT', lock, due)
end

-- retry_in_ms: when the head of the queue should retry if no message arrives: when the next ticket expires.
-- Other waiters need not retry.
if is_first and not inserted then
  local head = call('ZRANGE', lock, string.format('(%.0f', mark), '(8e15', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  is_first = head[2] and (head[2] == number or mine and mine[head[2]])
end
if is_first or grows then
  if not inserted then
    first = tonumber(call('ZRANGE', lock, '2', '2', 'WITHSCORES')[2])
  end
  answer[5] = first > now and math.floor(first) - now + 1 or 1
elseif answer[3] == 'waiting' then
  answer[5] = -1
end
if more then
  answer[#answer + 1] = 'more'
end

-- upgraded: the increased weight of a holder of a read-write lock fits since this request, because it is the
-- only holder left.
if was_over and used == capacity and string.sub(header, 4, 7) == 'read' then
  local only = call('ZRANGE', lock, '1e14', was_over, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  if only[2] and not (weighs and only[2] == number) then
    local told = redis.pcall(ARGV[7], ARGV[6] .. ':' .. string.sub(only[1], -20, -11), only[2])
    unheard = type(told) == 'table' and told.err or unheard
  end
end
if unheard then
  answer[#answer + 1] = unheard
  return answer
end
if answer[3] == 'held' or answer[3] == 'waiting' or answer[3] == 'released' or grows then
  return table.concat(answer, ' ')
end
return answer
