-- Each item: mode (l or p), lock id, expiry, token. A lock: plain key, side. A pool: one key.

local pools = nil

-- 1 if it is ours and now lasts for the whole expiry, 0 otherwise. Never takes anything. PEXPIRE comes first: it is
-- allowed on a server that is out of memory, and after it so is the rest.
local function lock_renew(key, side, id, ms, token)
  if call('GET', key) ~= id then return 0 end
  longer(key, ms)
  clock()
  local words = call('GET', side)
  local last, at, mark = match(words or '', '^(%d+) (%d+) (.*)$')
  if last ~= token then
    -- A quorum writes back the highest token of its nodes; or the side is gone, and the token with it.
    local higher = math.max(tonumber(last) or 0, tonumber(token))
    local rest = last and (at == '0' and last or at) .. ' ' .. mark or text(now) .. ' ' .. string.sub(id, -MARK)
    call('SET', side, text(higher) .. ' ' .. rest, 'PX', kept(call('PTTL', key), higher))
  elseif side_due(token, ms) then
    call('PEXPIRE', side, kept(call('PTTL', key), tonumber(token)))
  end
  return 1
end

return each(function()
  local mode, id, ms, token, key, side = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], KEYS[k], KEYS[k + 1]
  local lock = mode == 'l'
  k, a = k + (lock and 2 or 1), a + 4
  local code
  if lock then
    code = lock_renew(key, side, id, ms, token)
  else
    pools = pools or contended(false)
    code = pools.pool_renew(key, id, tonumber(ms), tonumber(token))
  end
  n = n + 1
  reply[n] = code
end, 1)
