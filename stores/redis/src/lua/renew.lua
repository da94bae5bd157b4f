-- Each item: mode (l or p), lock id, expiry, token. A lock: plain key, side. A pool: one key.

local slow = nil

-- 1 if it is ours and now lasts for the whole expiry, 0 otherwise. Never takes anything. PEXPIRE comes first: it is
-- allowed on a server that is out of memory, and after it so is the rest.
local function lock_renew(key, side, id, ms, token)
  if call('GET', key) ~= id then return 0 end
  local left = lasts(key, ms)
  local words = call('GET', side)
  local last = words and match(words, '^%d+')
  if last ~= token then
    -- A quorum writes back the highest token of its nodes; or the side is gone, and the token with it.
    clock()
    local higher = math.max(tonumber(last) or 0, tonumber(token))
    local rest = words and match(words, '^%d+( .*)$') or format(' %d %s', now, string.sub(id, -MARK))
    call('SET', side, text(higher) .. rest, 'PX', kept(left, higher))
  elseif call('PTTL', side) < left + RETENTION / 2 then
    -- It was granted long ago: the token must outlive the lock by the retention time, more or less.
    clock()
    call('PEXPIRE', side, kept(left, tonumber(token)))
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
    slow = slow or contended()
    code = slow.pool_renew(key, id, tonumber(ms), tonumber(token))
  end
  n = n + 1
  reply[n] = code
end, 1)
