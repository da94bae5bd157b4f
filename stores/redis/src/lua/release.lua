-- Each item: mode (l or p), lock id. A lock: plain key, side, line. A pool: one key.
-- 0: nothing was ours. 1: released. 2: released, and another process was told. UNFINISHED, UNFINISHED_NOT_OURS: as 1 and
-- 0, but the caller has to send it again until the first waiter that is not gone is told.

local locks, pools = nil, nil

return each(function()
  local mode, id, key, side, line = ARGV[a], ARGV[a + 1], KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local lock = mode == 'l'
  k, a = k + (lock and 3 or 1), a + 2
  local code
  if lock then
    local holder = call('GET', key)
    local held = holder == id
    if held then call('DEL', key) end
    if call('EXISTS', line) == 0 then
      code = held and 1 or 0
    else
      locks = locks or contended(true)
      code = locks.lock_released(key, side, line, id, held, holder)
    end
  else
    pools = pools or contended(false)
    code = pools.pool_release(key, id)
  end
  n = n + 1
  reply[n] = code
end, 1)
