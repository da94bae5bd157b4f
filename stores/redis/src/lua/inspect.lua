-- Looks, and with '1' takes away. Each item: mode (l or p), '1' to take it from its holders, the number of the waiter from
-- which on to look. Keys as in release.
-- Answers for each: capacity, {id, token or -1, acquired at or -1, time left or -1, weight, …}, {id, weight, …} of waiters,
-- and the number from which on the caller has to look again, or -1.

local slow = contended()

-- Tells a holder that its lock was broken.
local function tell_broken(id)
  local inbox = slow.inbox_of(id)
  if inbox then slow.tell(inbox, 'B ' .. id) end
end

local function lock_look(key, side, line, take, from)
  local holders, id, queue = {}, call('GET', key), slow.line_of(line)
  if id then
    local token, at = -1, -1
    local last, since, owner = match(call('GET', side) or '', '^(%d+) (%d+) (.*)$')
    if owner and (owner == string.sub(id, -MARK) or string.sub(owner, -#id) == id) then
      token = tonumber(last)
      at = since == '0' and token or tonumber(since)
    end
    holders = { id, token, at, call('PTTL', key), 1 }
    if take then
      call('DEL', key)
      tell_broken(id)
      slow.lock_pass_on(key, side, queue, true)
    end
  end
  if take then return { 1, holders, {}, queue.more and 0 or -1 } end
  local waiters, on = slow.queue_list(queue, from)
  return { 1, holders, waiters, on }
end

local function pool_look(key, take, from)
  local pool = slow.pool_open(key)
  local capacity, holders, found = pool.capacity, {}, slow.holders_of(pool)
  for _, holder in ipairs(found) do
    if holder.ends > now then
      local shown = { holder.id, holder.token, holder.at, holder.ends - now, holder.weight }
      for _, value in ipairs(shown) do holders[#holders + 1] = value end
    end
  end
  if not take then
    local waiters, on = slow.queue_list(pool.queue, from)
    return { capacity, holders, waiters, on }
  end
  for _, holder in ipairs(found) do
    call('HDEL', key, 'o:' .. holder.id, holder.slot and 'k:' .. format('%d', holder.slot) or 'k')
    if holder.ends > now then tell_broken(holder.id) end
  end
  pool.used, pool.slots = 0, pool.slots and 0
  slow.pool_grant(pool, nil)
  slow.queue_first(pool.queue)
  slow.pool_close(pool)
  return { capacity, holders, {}, pool.queue.more and 0 or -1 }
end

return each(function()
  local mode, take, from = ARGV[a], ARGV[a + 1] == '1', tonumber(ARGV[a + 2])
  local lock, key, side, line = mode == 'l', KEYS[k], KEYS[k + 1], KEYS[k + 2]
  k, a = k + (lock and 3 or 1), a + 3
  local found = lock and lock_look(key, side, line, take, from) or pool_look(key, take, from)
  n = n + 1
  reply[n] = found
end, 1)
