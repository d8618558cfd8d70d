-- Writes fields of a hash, unless the hash has a newer token in its field `#token`.
-- KEYS: the hash. ARGV: the token, then fields and values in turn.
-- Replies OK. An error that begins with OLDTOKEN or BADTOKEN means that nothing was written.

-- Compares decimal numbers of any length exactly.
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

-- The token comes last, so that no field of the caller overwrites it.
local fields = { unpack(ARGV, 2) }
fields[#fields + 1] = '#token'
fields[#fields + 1] = token
redis.call('HSET', KEYS[1], unpack(fields))
return redis.status_reply('OK')
