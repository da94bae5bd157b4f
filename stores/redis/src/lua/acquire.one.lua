
local time, deadline = call('TIME'), tonumber(ARGV[1])
now = time[1] * 1000 + math.floor(time[2] / 1000)
if deadline > 0 and now > deadline then
  -- Whoever asked has given up by now and may have withdrawn already: a grant would be nobody's.
  return { now }
end

-- One lock that is free, and nobody waits for it. Its token, by the rule of every lease store: one more than the last,
-- or the clock if that is higher.
if #KEYS == 3 and #ARGV <= 6 and call('EXISTS', KEYS[3]) == 0 then
  local id, ms, last = ARGV[3], ARGV[4], call('GET', KEYS[2])
  local before = last and tonumber(match(last, '^%d+')) or 0
  local token = before < now and now or before + 1
  if ms + token - now <= SHORT and call('SET', KEYS[1], id, 'NX', 'PX', ms) then
    call('SET', KEYS[2], format('%d %d %s %s', token, now, ARGV[6] or '-', id), 'PX', LIFE)
    return { now, 1, token }
  end
end
