-- Looks, and with '1' takes away. Each item: mode (l or p), '1' to take it from its holders, the number of the waiter from
-- which on to look. Keys as in release.
-- Answers for each: capacity, {id, token or -1, acquired at or -1, time left or -1, weight, …}, {id, weight, …} of waiters,
-- and the number from which on the caller has to look again, or -1.

local locks, pools = contended(true), contended(false)

-- Tells a holder that its lock was broken.
local function tell_broken(id)
  local inbox = locks.inbox_of(id)
  if inbox then call('PUBLISH', CHANNEL .. inbox, 'B ' .. id) end
end

-- The waiters from this number on, as {id, weight, …}, and the number at which the next call continues, or -1.
local function waiting_in(queue, from)
  local found, number = {}, math.max(from, queue.head)
  while number < queue.tail do
    if budget == 0 then return found, number end
    budget = budget - 1
    local raw = call('HGET', queue.key, 'q:' .. text(number))
    local _, last = locks.queue_run(raw)
    local entry = raw and not last and locks.queue_read(raw, number)
    if entry and entry.ends > now then
      found[#found + 1] = entry.id
      found[#found + 1] = entry.weight
    end
    number = (last or number) + 1
  end
  return found, -1
end

local function lock_look(key, side, line, take, from)
  local holders, id, queue = {}, call('GET', key), locks.line_of(line)
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
      locks.lock_pass_on(key, side, queue, true)
    end
  end
  if take then return { 1, holders, {}, queue.more and 0 or -1 } end
  local waiters, on = waiting_in(queue, from)
  return { 1, holders, waiters, on }
end

local function pool_look(key, take, from)
  local pool = pools.pool_open(key)
  local capacity, holders, found = pool.capacity, {}, pools.holders_of(pool)
  for _, holder in ipairs(found) do
    if holder.ends > now then
      local shown = { holder.id, holder.token, holder.at, holder.ends - now, holder.weight }
      for _, value in ipairs(shown) do holders[#holders + 1] = value end
    end
  end
  if not take then
    local waiters, on = waiting_in(pool.queue, from)
    return { capacity, holders, waiters, on }
  end
  for _, holder in ipairs(found) do
    call('HDEL', key, 'o:' .. holder.id, holder.slot and 'k:' .. text(holder.slot) or 'k')
    if holder.ends > now then tell_broken(holder.id) end
  end
  pool.used, pool.slots = 0, pool.slots and 0
  pools.pool_grant(pool, nil)
  pools.queue_first(pool.queue)
  pools.pool_close(pool)
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
