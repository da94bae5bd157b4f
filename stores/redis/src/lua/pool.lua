-- The pool record: weighted holders and a first-come queue, in one hash:
--   t     the last token, kept when nobody uses the pool any more
--   c     the capacity
--   u     the weight of all holders
--   x, y  nobody's hold ends before x; nobody's hold or wait after y
--   o:ID  a holder: "ends token weight acquired-at inbox"
-- and the queue. Holders are looked through only when x has passed: their number costs nothing otherwise.

-- A waiter that cannot be told is granted to for this long only: it may be about to subscribe.
local UNTOLD = 500
-- One that cannot be told and has not asked for this long is gone.
local GONE = 1500

local function pool_open(key)
  local state = call('HMGET', key, 't', 'c', 'u', 'x', 'y', 'h', 'n')
  return {
    key = key, token = tonumber(state[1]) or 0, capacity = tonumber(state[2]) or 0, used = tonumber(state[3]) or 0,
    soonest = tonumber(state[4]) or 0, latest = tonumber(state[5]) or 0, queue = queue_open(key, state[6], state[7]),
  }
end

local function holder_read(raw)
  local ends, token, weight, at, inbox = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%S+)$')
  if not ends then error('the pool was not written by distlock') end
  return { ends = tonumber(ends), token = tonumber(token), weight = tonumber(weight), at = tonumber(at), inbox = inbox }
end

local function holder_write(pool, id, holder)
  pool.soonest = pool.used > 0 and math.min(pool.soonest, holder.ends) or holder.ends
  pool.latest = math.max(pool.latest, holder.ends)
  call('HSET', pool.key, 'o:' .. id, format('%d %d %d %d %s', holder.ends, holder.token, holder.weight, holder.at,
    holder.inbox))
end

local function holder_find(pool, id)
  local raw = pool.used > 0 and call('HGET', pool.key, 'o:' .. id)
  return raw and holder_read(raw) or nil
end

local function holder_drop(pool, id, holder)
  call('HDEL', pool.key, 'o:' .. id)
  pool.used = pool.used - holder.weight
end

-- All holders that are in the hash, whether their time is over or not.
local function holders_of(pool)
  local found = {}
  local all = call('HGETALL', pool.key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'o:' then
      local holder = holder_read(all[i + 1])
      holder.id = string.sub(all[i], 3)
      found[#found + 1] = holder
    end
  end
  return found
end

local function pool_purge(pool)
  if pool.used == 0 or now < pool.soonest then return end
  local soonest, used = nil, 0
  for _, holder in ipairs(holders_of(pool)) do
    if holder.ends <= now then
      call('HDEL', pool.key, 'o:' .. holder.id)
    else
      used = used + holder.weight
      soonest = math.min(soonest or holder.ends, holder.ends)
    end
  end
  pool.used, pool.soonest = used, soonest or 0
end

local function pool_hold(pool, id, weight, ms, inbox)
  pool.token = pool.token >= now and pool.token + 1 or now
  holder_write(pool, id, { ends = now + ms, token = pool.token, weight = weight, at = now, inbox = inbox })
  pool.used = pool.used + weight
  return pool.token
end

-- Grants to the head of the queue while it fits, strictly in order: a light claim never passes a heavy one, or
-- readers would starve a writer. Who asks just now (`asking`) hears it from the answer. True if an inbox other than
-- `own` was told.
local function pool_grant(pool, asking, own)
  local others = false
  while true do
    local first = queue_first(pool.queue)
    if not first or pool.used + first.weight > pool.capacity then return others end
    queue_drop(pool.queue, first)
    local window = math.min(first.ms, WINDOW)
    local token = pool_hold(pool, first.id, first.weight, window, first.inbox)
    if first.id ~= asking then
      local message = first.mode == 'g' and grant_message(first, token, window) or 'R ' .. first.id
      if tell(first.inbox, message) then
        others = others or first.inbox ~= own
      elseif now - first.seen > GONE then
        holder_drop(pool, first.id, first)
      elseif window > UNTOLD then
        holder_write(pool, first.id,
          { ends = now + UNTOLD, token = token, weight = first.weight, at = now, inbox = first.inbox })
      end
    end
  end
end

local function pool_close(pool)
  if pool.used == 0 and pool.queue.head == pool.queue.tail then
    call('HDEL', pool.key, 'c', 'u', 'x', 'y')
    if pool.token > 0 then call('HSET', pool.key, 't', text(pool.token)) end
    call('PEXPIRE', pool.key, kept(0, pool.token))
  else
    call('HSET', pool.key, 't', text(pool.token), 'c', text(pool.capacity), 'u', text(pool.used), 'x',
      text(pool.soonest), 'y', text(pool.latest))
    call('PEXPIRE', pool.key, kept(math.max(0, pool.latest - now), pool.token))
  end
end

-- Granted: 1, token. Busy: 0, time until it is worth asking again. Another capacity is in use: 2, that capacity.
local function pool_acquire(key, id, ms, ttl, inbox, mode, weight, capacity)
  local pool = pool_open(key)
  pool_purge(pool)
  if (pool.used > 0 or queue_first(pool.queue)) and pool.capacity ~= capacity then
    pool_close(pool)
    return 2, pool.capacity
  end
  pool.capacity = capacity
  pool_grant(pool, id)

  local holder = holder_find(pool, id)
  if holder then
    holder.ends = now + ms
    holder_write(pool, id, holder)
    pool_close(pool)
    return 1, holder.token
  end
  local first = queue_first(pool.queue)
  if (not first or first.id == id) and pool.used + weight <= capacity then
    if first then queue_drop(pool.queue, first) end
    local token = pool_hold(pool, id, weight, ms, inbox)
    pool_close(pool)
    return 1, token
  end
  local retry = pool.used > 0 and pool.soonest or nil
  if first and first.id ~= id then retry = math.min(retry or first.ends, first.ends) end
  if ttl > 0 then
    queue_put(pool.queue, id, ms, ttl, inbox, weight, mode)
    pool.latest = math.max(pool.latest, now + ttl)
  elseif queue_remove(pool.queue, id) then
    pool_grant(pool, id)
  end
  queue_first(pool.queue)
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
    holder.ends = now + ms
    holder.token = math.max(holder.token, token)
    pool.token = math.max(pool.token, token)
    holder_write(pool, id, holder)
  end
  pool_grant(pool, nil)
  pool_close(pool)
  return holder and 1 or 0
end

-- 0: nothing was ours. 1: given back. 2: given back, and another process was told.
local function pool_release(key, id)
  local pool = pool_open(key)
  if pool.used == 0 and pool.queue.tail == 0 then return 0 end
  pool_purge(pool)
  local holder = holder_find(pool, id)
  if holder then holder_drop(pool, id, holder) end
  local waited = queue_remove(pool.queue, id)
  local own = holder and holder.inbox or (waited and waited.inbox)
  local others = pool_grant(pool, nil, own)
  queue_first(pool.queue)
  pool_close(pool)
  if not holder and not waited then return 0 end
  return others and 2 or 1
end
