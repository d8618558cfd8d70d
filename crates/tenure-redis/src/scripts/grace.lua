-- The grace of a server that is not the one that it was: put before the text of a machine, for
-- acquire alone.
--
-- A server that has restarted, or was promoted, has another replication id. It may not know a lease
-- that still runs, so it grants nothing until the longest can be over. The same where the epoch is
-- gone: everything else may be, too.
--
-- KEYS   the last: the epoch, as ID:MS, a replication id and since when it is known
-- ARGV   the last: grace_ms
-- Reply  in grace { owner, request, busy, (restart), left_ms }, else that of the machine
do
  local epoch = KEYS[#KEYS]
  local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  if not id then
    return redis.error_reply('ERR this server tells no replication id')
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local known, since = string.match(redis.call('GET', epoch) or '', '^(%x+):(%d+)$')
  if known ~= id or tonumber(since) > now then
    -- Also where the clock was ahead when it was written: no client waits for it to come there
    -- again.
    since = now
    redis.call('SET', epoch, id .. ':' .. string.format('%.0f', now), 'PX', '2592000000')
  elseif redis.call('PTTL', epoch) < 1296000000 then
    redis.call('PEXPIRE', epoch, '2592000000')
  end
  local left = since + tonumber(ARGV[#ARGV]) - now
  if left > 0 then
    return { ARGV[2], ARGV[3], 'busy', '(restart)', left }
  end
end
