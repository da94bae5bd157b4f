-- The pool record: weighted holders and a first-come queue, in one hash:
--   t       the last token, kept when the pool is unused
--   c       the capacity
--   u       the weight of all holders
--   x, y    no hold ends before x; no hold and no wait ends after y
--   o:ID    a holder: "ends token weight acquired-at inbox", with "slot/" before the inbox if it has a slot
--   m       the number of slots, if there are slots
--   k:SLOT  the lock id of the holder there
-- and the queue. Holders are looked through only when x has passed: their number costs nothing otherwise. Slots find them
-- without a look at the queue. A pool has slots from the first long queue until it is unused.

-- A waiter that cannot be told is granted to for this long only: it may be about to subscribe.
local UNTOLD = 500
-- One that cannot be told and has not asked for this long is gone.
local GONE = 1500
-- A queue longer than this is long.
local LONG = 64

local function pool_open(key)
  local state = call('HMGET', key, 't', 'c', 'u', 'x', 'y', 'h', 'n', 'd', 'm')
  return {
    key = key, token = tonumber(state[1]) or 0, capacity = tonumber(state[2]) or 0, used = tonumber(state[3]) or 0,
    soonest = tonumber(state[4]) or 0, latest = tonumber(state[5]) or 0,
    queue = queue_open(key, state[6], state[7], state[8]), slots = tonumber(state[9]),
  }
end

local function holder_read(pool, raw, id)
  local ends, token, weight, at, inbox = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%S+)$')
  if not ends then error('the pool was not written by distlock') end
  local slot, rest = nil, nil
  if pool.slots then slot, rest = match(inbox, '^(%d+)/(.+)$') end
  return {
    id = id, ends = tonumber(ends), token = tonumber(token), weight = tonumber(weight), at = tonumber(at),
    slot = tonumber(slot), inbox = rest or inbox,
  }
end

-- The text of a holder that is about to be written.
local function holder_text(pool, holder)
  local ends = holder.ends
  if ends < pool.soonest or pool.soonest == 0 then pool.soonest = ends end
  if ends > pool.latest then pool.latest = ends end
  if not holder.slot then
    return format('%d %d %d %d %s', ends, holder.token, holder.weight, holder.at, holder.inbox)
  end
  return format('%d %d %d %d %d/%s', ends, holder.token, holder.weight, holder.at, holder.slot, holder.inbox)
end

local function holder_write(pool, holder)
  local raw = holder_text(pool, holder)
  if holder.slot then
    call('HSET', pool.key, 'o:' .. holder.id, raw, 'k:' .. text(holder.slot), holder.id)
  else
    call('HSET', pool.key, 'o:' .. holder.id, raw)
  end
end

local function holder_find(pool, id)
  local raw = pool.used > 0 and call('HGET', pool.key, 'o:' .. id)
  return raw and holder_read(pool, raw, id) or nil
end

-- Takes a holder out. The holder of the last slot moves to the one that becomes free.
local function holder_drop(pool, holder)
  pool.used = pool.used - holder.weight
  local last = pool.slots
  if not last or not holder.slot or last == 0 then
    call('HDEL', pool.key, 'o:' .. holder.id)
    return
  end
  local mover = holder.slot < last and call('HGET', pool.key, 'k:' .. text(last))
  call('HDEL', pool.key, 'o:' .. holder.id, 'k:' .. text(last))
  pool.slots = last - 1
  local raw = mover and call('HGET', pool.key, 'o:' .. mover)
  if raw then
    local moved = holder_read(pool, raw, mover)
    moved.slot = holder.slot
    holder_write(pool, moved)
  end
end

-- All holders, whether their time is over or not, in the order of their slots; and whether each has one, if any has: the
-- previous version gives none.
local function holders_of(pool)
  local found, seen, weight = {}, {}, 0
  for slot = 1, pool.slots or 0 do
    local id = call('HGET', pool.key, 'k:' .. text(slot))
    local raw = id and not seen[id] and call('HGET', pool.key, 'o:' .. id)
    if raw then
      found[#found + 1], seen[id] = holder_read(pool, raw, id), true
      weight = weight + found[#found].weight
    end
  end
  if pool.slots and weight == pool.used then return found, true end
  found = {}
  local all = call('HGETALL', pool.key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'o:' then found[#found + 1] = holder_read(pool, all[i + 1], string.sub(all[i], 3)) end
  end
  return found, not pool.slots
end

-- Gives each of these holders, who are all there are, a slot, and leaves no other.
local function slots_write(pool, holders)
  for slot = #holders + 1, pool.slots or 0 do call('HDEL', pool.key, 'k:' .. text(slot)) end
  for slot, holder in ipairs(holders) do
    holder.slot = slot
    holder_write(pool, holder)
  end
  pool.slots = #holders
end

local function pool_purge(pool)
  if pool.used == 0 or now < pool.soonest then return end
  local holders, complete = holders_of(pool)
  -- A holder that the previous version took out has left its slot behind.
  if not complete or (pool.slots or 0) > 2 * #holders + LONG then slots_write(pool, holders) end
  local soonest = nil
  -- From the last one on: the holder that moves to a free slot is then one that stays.
  for i = #holders, 1, -1 do
    local holder = holders[i]
    if holder.ends <= now then
      holder_drop(pool, holder)
    else
      soonest = math.min(soonest or holder.ends, holder.ends)
    end
  end
  pool.soonest = soonest or 0
end

-- A new holder, which the caller writes.
local function pool_hold(pool, id, weight, ms, inbox)
  pool.token = pool.token >= now and pool.token + 1 or now
  if pool.used == 0 then pool.soonest = 0 end
  if pool.slots then pool.slots = pool.slots + 1 end
  local holder = {
    id = id, ends = now + ms, token = pool.token, weight = weight, at = now, inbox = inbox, slot = pool.slots,
  }
  pool.used = pool.used + weight
  return holder
end

-- Grants to the head of the queue while it fits, strictly in order: a light claim never passes a heavy one, or
-- readers would starve a writer. The claim that asks just now (`asking`) hears it from the answer. True if an inbox other
-- than `own` was told.
local function pool_grant(pool, asking, own)
  local others, queue = false, pool.queue
  while true do
    local first = queue_first(queue)
    if not first or pool.used + first.weight > pool.capacity or not queue_spend(queue, GRANT) then return others end
    queue_take(queue, first)
    local window = math.min(first.ms, WINDOW)
    local holder = pool_hold(pool, first.id, first.weight, window, first.inbox)
    holder_write(pool, holder)
    if first.id ~= asking then
      local message = first.mode == 'g' and grant_message(first, holder.token, window) or 'R ' .. first.id
      if tell(first.inbox, message) then
        others = others or first.inbox ~= own
      elseif now - first.seen > GONE then
        holder_drop(pool, holder)
      elseif window > UNTOLD then
        holder.ends = now + UNTOLD
        holder_write(pool, holder)
      end
    end
  end
end

-- Writes what changed, and beside it a holder; or deletes the field of one that is gone.
local function pool_close(pool, holder, gone)
  if pool.used == 0 and pool.queue.head == pool.queue.tail then
    if (pool.slots or 0) > 0 then slots_write(pool, {}) end
    call('HDEL', pool.key, 'c', 'u', 'x', 'y', 'm', gone or 'm')
    if pool.token > 0 then call('HSET', pool.key, 't', text(pool.token)) end
    call('PEXPIRE', pool.key, kept(0, pool.token))
    return
  end
  if gone then call('HDEL', pool.key, gone) end
  local field, value = 'm', pool.slots and text(pool.slots)
  if holder and holder.slot then
    holder_write(pool, holder)
  elseif holder then
    field, value = 'o:' .. holder.id, holder_text(pool, holder)
  end
  local token, capacity, used = text(pool.token), text(pool.capacity), text(pool.used)
  local soonest, latest = text(pool.soonest), text(pool.latest)
  if value then
    call('HSET', pool.key, 't', token, 'c', capacity, 'u', used, 'x', soonest, 'y', latest, field, value)
  else
    call('HSET', pool.key, 't', token, 'c', capacity, 'u', used, 'x', soonest, 'y', latest)
  end
  call('PEXPIRE', pool.key, kept(math.max(0, pool.latest - now), pool.token))
end

-- Granted: 1, token. Busy: 0, time until it is worth asking again. Another capacity is in use: 2, that capacity.
-- UNFINISHED: see there.
local function pool_acquire(key, id, ms, ttl, inbox, attempt, mode, weight, capacity)
  local pool = pool_open(key)
  local queue = pool.queue
  pool_purge(pool)
  local first = queue_first(queue)
  if not queue.more and (pool.used > 0 or first) and pool.capacity ~= capacity then
    pool_close(pool)
    return 2, pool.capacity
  end
  if not queue.more then
    pool.capacity = capacity
    pool_grant(pool, id)
  end

  local holder = holder_find(pool, id)
  if holder then
    holder.ends = math.max(holder.ends, now + ms)
    pool_close(pool, holder)
    return 1, holder.token
  end
  if queue.more then
    pool_close(pool)
    return UNFINISHED, 0
  end
  first = queue_first(queue)
  if (not first or first.id == id) and pool.used + weight <= capacity then
    if first then queue_drop(queue, first) end
    holder = pool_hold(pool, id, weight, ms, inbox)
    pool_close(pool, holder)
    return 1, holder.token
  end
  local retry = pool.used > 0 and pool.soonest or nil
  if first and first.id ~= id then retry = math.min(retry or first.ends, first.ends) end
  if ttl > 0 then
    queue_put(queue, id, ms, ttl, inbox, weight, mode, attempt)
    pool.latest = math.max(pool.latest, now + ttl)
    if not pool.slots and queue.tail - queue.head > LONG then slots_write(pool, (holders_of(pool))) end
  elseif queue_remove(queue, id) then
    pool_grant(pool, id)
  end
  queue_first(queue)
  pool_close(pool)
  return 0, retry and math.max(0, retry - now) or -1
end

local function pool_renew(key, id, ms, token)
  local pool = pool_open(key)
  -- Allowed on a server that is out of memory, and after it so is the rest.
  if call('PEXPIRE', key, kept(math.max(ms, pool.latest - now), pool.token)) == 0 then return 0 end
  pool_purge(pool)
  local holder = holder_find(pool, id)
  if holder then
    holder.ends = math.max(holder.ends, now + ms)
    holder.token = math.max(holder.token, token)
    pool.token = math.max(pool.token, token)
  end
  pool_grant(pool, nil)
  pool_close(pool, holder)
  return holder and 1 or 0
end

-- Returns what `release.lua` tells.
local function pool_release(key, id)
  local pool = pool_open(key)
  local queue = pool.queue
  if pool.used == 0 and queue.tail == 0 then return 0 end
  pool_purge(pool)
  local holder, gone = holder_find(pool, id), nil
  if holder and holder.slot then
    holder_drop(pool, holder)
  elseif holder then
    pool.used, gone = pool.used - holder.weight, 'o:' .. id
  end
  local waited = queue_remove(queue, id)
  local own = holder and holder.inbox or (waited and waited.inbox)
  local others = pool_grant(pool, nil, own)
  queue_first(queue)
  pool_close(pool, nil, gone)
  local ours = holder or waited
  if queue.more and pool.used < pool.capacity then return ours and UNFINISHED or UNFINISHED_NOT_OURS end
  if not ours then return 0 end
  return others and 2 or 1
end
