-- Restart grace, prepended to the script of a machine for what may grant: acquire, and the renewal of a reader that
-- becomes the writer.
--
-- A server that restarted or was promoted has a new replication id and may have lost leases that still
-- run, so it grants nothing until the longest possible lease has expired. The same applies if the epoch
-- is missing, because other keys may be missing too.
--
-- KEYS   last: the epoch, ID:MS, a replication id and since when (server's clock, ms) it is known
-- ARGV   last: grace_ms
-- Reply  during the grace { owner, request, busy, (restart), left_ms }, for a renewal { owner, request, growing, 0,
--        left_ms }, otherwise the machine's
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
    -- An epoch in the future was written while the clock was ahead: replace it, rather than wait for
    -- the clock to catch up.
    since = now
    redis.call('SET', epoch, id .. ':' .. string.format('%.0f', now), 'PX', '2592000000')
  elseif redis.call('PTTL', epoch) < 1296000000 then
    redis.call('PEXPIRE', epoch, '2592000000')
  end
  local left = since + tonumber(ARGV[#ARGV]) - now
  if left > 0 then
    if ARGV[1] == 'renew' then
      return { ARGV[2], ARGV[3], 'growing', '0', left }
    end
    return { ARGV[2], ARGV[3], 'busy', '(restart)', left }
  end
end
