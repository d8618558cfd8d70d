-- Writes fields of a hash, unless its field `#token` is a newer token.
-- KEYS: the hash. ARGV: the token, then fields and their values in turn.
-- Replies with OK, or with an error that begins with OLDTOKEN or BADTOKEN, and nothing is written.

-- As decimal numbers, exact at any length.
local function less(a, b)
    return #a < #b or #a == #b and a < b
end

local token = ARGV[1]
if not token or not token:match('^[1-9]%d*$') then
    return redis.error_reply('BADTOKEN want a token above 0')
end
local seen = redis.call('HGET', KEYS[1], '#token')
if seen and less(token, seen) then
    return redis.error_reply('OLDTOKEN ' .. token .. ' is older than ' .. seen)
end

-- The token comes last, so that no field of the caller's takes its place.
local fields = { unpack(ARGV, 2) }
fields[#fields + 1] = '#token'
fields[#fields + 1] = token
redis.call('HSET', KEYS[1], unpack(fields))
return redis.status_reply('OK')
