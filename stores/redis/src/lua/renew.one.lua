
-- Lets a key last for `ms` from now. False if it lasts as long already, or has no expiry: then the slow way decides.
local modern = redis.REDIS_VERSION_NUM
local function longer(key, ms)
  if modern then return call('PEXPIRE', key, ms, 'GT') == 1 end
  -- Redis 6 has no GT.
  local left = call('PTTL', key)
  return left >= 0 and left < tonumber(ms) and call('PEXPIRE', key, ms) == 1
end

-- Whether this renewal is the one that lets the side last longer: one in each half of the retention time does, since a
-- lock is renewed at least once in each `ms`.
local function side_due(token, ms)
  local age, half = now - token, RETENTION / 2
  return age >= half and age % half < tonumber(ms)
end

-- One lock that is ours, with our token beside it. The answer is the clock as text: a list would take the server as long
-- as another call.
if #KEYS == 2 and #ARGV == 5 then
  local key, side, id, ms, token = KEYS[1], KEYS[2], ARGV[3], ARGV[4], ARGV[5]
  if call('GET', key) == id then
    local words, time = call('GET', side), call('TIME')
    local moment = time[1] .. string.sub('00000' .. time[2], -6, -4)
    now = tonumber(moment)
    if words and string.find(words, token .. ' ', 1, true) == 1 and longer(key, ms) then
      if side_due(token, ms) then call('PEXPIRE', side, format('%d', ms + RETENTION)) end
      return moment
    end
  end
end
