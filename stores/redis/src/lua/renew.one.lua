
-- One lock that is ours, with our token beside it. The answer is the clock as text: a list would take the server as long as
-- another call. GT: never sooner than it already ends, since a request that is applied late must not shorten it. Redis 6
-- does not know it.
--
-- In each half of the retention time one renewal lets the side last longer: `age % half < ms` is true for one at least, since
-- a lock is renewed at least once in each `ms`. If that is longer than the half, all of them do.
local modern, half = redis.REDIS_VERSION_NUM, RETENTION / 2
if #KEYS == 2 and #ARGV == 5 then
  local id, ms, token = ARGV[3], ARGV[4], ARGV[5]
  if call('GET', KEYS[1]) == id then
    local words, time = call('GET', KEYS[2]), call('TIME')
    local moment = time[1] .. string.sub('00000' .. time[2], -6, -4)
    now = tonumber(moment)
    if words and string.find(words, token .. ' ', 1, true) == 1 then
      local done, age = nil, now - token
      if modern then
        done = call('PEXPIRE', KEYS[1], ms, 'GT') == 1
      else
        local left = call('PTTL', KEYS[1])
        done = left >= 0 and left < ms + 0 and call('PEXPIRE', KEYS[1], ms) == 1
      end
      if done and age + ms > half and (ms + 0 > half or age >= half and age % half < ms + 0) then
        call('PEXPIRE', KEYS[2], format('%d', ms + RETENTION))
      end
      if done then return moment end
    end
  end
end

-- Lets a key last for `ms` from now, unless it lasts longer already. A key without an expiry, which another program made so,
-- gets one.
local function longer(key, ms)
  local left = call('PTTL', key)
  if left < tonumber(ms) then call('PEXPIRE', key, ms) end
end

-- Whether this renewal lets the side last longer.
local function side_due(token, ms)
  local age = now - token
  return ms + 0 > half or age >= half and age % half < ms + 0
end
