-- Each item. A lock (plain key, side, line): mode, lock id, expiry; and if it waits, the time to wait without asking
-- again, its inbox and the number of the attempt. A pool (one key): mode, lock id, expiry, that time (0: one attempt),
-- inbox, number, weight and capacity.
-- `mode`: o (a lock, one attempt), l (a lock that waits) or p; g or r, see the queue; t if in turn.

local locks, pools = nil, nil

return each(function()
  local mode, id, ms, ttl, inbox, attempt = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  local key, side, line, weight, capacity = KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a + 6], ARGV[a + 7]
  local letter = string.byte(mode)
  local lock = letter ~= 112
  if letter == 111 then
    ttl, inbox, attempt, k, a = '0', '-', '0', k + 3, a + 3
  elseif lock then
    k, a = k + 3, a + 6
  else
    k, a = k + 1, a + 8
  end
  local code, value
  if lock and call('EXISTS', line, key) == 0 then
    code, value = 1, lock_hold(key, side, id, call('GET', side), ms)
  else
    local push = string.sub(mode, 2, 2)
    if lock then
      locks = locks or contended(true)
      code, value = locks.lock_acquire(key, side, line, id, ms, ttl, inbox, attempt, push, string.sub(mode, 3) == 't')
    else
      pools = pools or contended(false)
      code, value = pools.pool_acquire(key, id, tonumber(ms), tonumber(ttl), inbox, tonumber(attempt), push,
        tonumber(weight), tonumber(capacity))
    end
  end
  reply[n + 1], reply[n + 2] = code, value
  n = n + 2
end, 2)
