
-- The clock in ms, as text and as a number.
local time, deadline = call('TIME'), tonumber(ARGV[1])
local moment = time[1] .. string.sub('00000' .. time[2], -6, -4)
now = tonumber(moment)
if deadline > 0 and now > deadline then
  -- Whoever asked has given up by now and may have withdrawn already: a grant would be nobody's.
  return { now }
end

-- One lock that is free, and nobody waits for it. Its token, by the rule of every lease store: one more than the last,
-- or the clock if that is higher. The answer is the clock as text, and the token behind it if that is another: a list
-- would take the server as long as another call.
if #KEYS == 3 and #ARGV <= 7 and call('EXISTS', KEYS[3]) == 0 then
  local id, ms, last = ARGV[3], ARGV[4], call('GET', KEYS[2])
  local before = last and tonumber(match(last, '^%d+')) or 0
  local token = before < now and now or before + 1
  if ms + token - now <= SHORT and call('SET', KEYS[1], id, 'NX', 'PX', ms) then
    local word = token == now and moment or format('%d', token)
    call('SET', KEYS[2], word .. (token == now and ' 0 ' or ' ' .. moment .. ' ') .. string.sub(id, -MARK), 'PX', LIFE)
    return token == now and moment or moment .. ' ' .. word
  end
end
