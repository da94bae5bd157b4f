
-- The pool record: weighted holders and a wait queue, in one hash:
--   t         the last token, kept while the pool is unused
--   c         the capacity
--   u         the weight of all holders
--   x, y      no lease ends before x; no lease and no queue entry ends after y
--   o:ID      a holder: "ends token weight acquired-at inbox", with "index/" before the inbox if holders are indexed
--   m         the number of indexed holders, if holders are indexed
--   k:INDEX   the lock id of the holder with this index
-- and the fields of the queue (see wait_queue.lua). Holders are examined only once x has passed. Indexes make that possible
-- without reading the queue as well; a pool has them from its first long queue until it is unused.

-- A waiter that received no message keeps its grant for this long only, in ms: it may be about to subscribe.
local UNNOTIFIED_WINDOW = 500
-- A waiter that received no message and has not asked for this long, in ms, is absent.
local ABSENT_AFTER = 1500
-- A queue longer than this is long.
local LONG_QUEUE = 64

local function pool_open(key)
  local state = call('HMGET', key, 't', 'c', 'u', 'x', 'y', 'h', 'n', 'd', 'm')
  return {
    key = key, token = tonumber(state[1]) or 0, capacity = tonumber(state[2]) or 0, used = tonumber(state[3]) or 0,
    soonest = tonumber(state[4]) or 0, latest = tonumber(state[5]) or 0,
    queue = queue_open(key, state[6], state[7], state[8]), indexed = tonumber(state[9]),
  }
end

-- How long an unused pool keeps its token: for the retention, and longer if the token is ahead of the clock, because then the
-- clock alone would not produce a higher one.
local function pool_ttl(left, token) return text(left + RETENTION + math.max(0, token - now)) end

local function holder_parse(pool, raw, id)
  local ends, token, weight, at, inbox = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%S+)$')
  if not ends then error('the pool was not written by distlock') end
  local index, rest = nil, nil
  if pool.indexed then index, rest = match(inbox, '^(%d+)/(.+)$') end
  return {
    id = id, ends = tonumber(ends), token = tonumber(token), weight = tonumber(weight), at = tonumber(at),
    index = tonumber(index), inbox = rest or inbox,
  }
end

-- The text of a holder that is about to be written.
local function holder_text(pool, holder)
  local ends = holder.ends
  if ends < pool.soonest or pool.soonest == 0 then pool.soonest = ends end
  if ends > pool.latest then pool.latest = ends end
  if not holder.index then
    return format('%d %d %d %d %s', ends, holder.token, holder.weight, holder.at, holder.inbox)
  end
  return format('%d %d %d %d %d/%s', ends, holder.token, holder.weight, holder.at, holder.index, holder.inbox)
end

local function holder_write(pool, holder)
  local raw = holder_text(pool, holder)
  if holder.index then
    call('HSET', pool.key, 'o:' .. holder.id, raw, 'k:' .. text(holder.index), holder.id)
  else
    call('HSET', pool.key, 'o:' .. holder.id, raw)
  end
end

local function holder_find(pool, id)
  local raw = pool.used > 0 and call('HGET', pool.key, 'o:' .. id)
  return raw and holder_parse(pool, raw, id) or nil
end

-- Deletes a holder. The holder with the last index moves to the index that becomes free.
local function holder_delete(pool, holder)
  pool.used = pool.used - holder.weight
  local last = pool.indexed
  if not last or not holder.index or last == 0 then
    call('HDEL', pool.key, 'o:' .. holder.id)
    return
  end
  local mover = holder.index < last and call('HGET', pool.key, 'k:' .. text(last))
  call('HDEL', pool.key, 'o:' .. holder.id, 'k:' .. text(last))
  pool.indexed = last - 1
  local raw = mover and call('HGET', pool.key, 'o:' .. mover)
  if raw then
    local moved = holder_parse(pool, raw, mover)
    moved.index = holder.index
    holder_write(pool, moved)
  end
end

-- All holders, expired ones included, in the order of their indexes; and whether the indexes are complete: the previous
-- version writes none.
local function holders_of(pool)
  local found, seen, weight = {}, {}, 0
  for index = 1, pool.indexed or 0 do
    local id = call('HGET', pool.key, 'k:' .. text(index))
    local raw = id and not seen[id] and call('HGET', pool.key, 'o:' .. id)
    if raw then
      found[#found + 1], seen[id] = holder_parse(pool, raw, id), true
      weight = weight + found[#found].weight
    end
  end
  if pool.indexed and weight == pool.used then return found, true end
  found = {}
  local all = call('HGETALL', pool.key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'o:' then found[#found + 1] = holder_parse(pool, all[i + 1], string.sub(all[i], 3)) end
  end
  return found, not pool.indexed
end

-- Indexes these holders, which are all there are, and deletes every other index.
local function index_holders(pool, holders)
  for index = #holders + 1, pool.indexed or 0 do call('HDEL', pool.key, 'k:' .. text(index)) end
  for index, holder in ipairs(holders) do
    holder.index = index
    holder_write(pool, holder)
  end
  pool.indexed = #holders
end

local function delete_expired(pool)
  if pool.used == 0 or now < pool.soonest then return end
  local holders, complete = holders_of(pool)
  -- A holder that the previous version deleted has left its index behind.
  if not complete or (pool.indexed or 0) > 2 * #holders + LONG_QUEUE then index_holders(pool, holders) end
  local soonest = nil
  -- From the last one on, so that the holder that moves to a free index is one that stays.
  for i = #holders, 1, -1 do
    local holder = holders[i]
    if holder.ends <= now then
      holder_delete(pool, holder)
    else
      soonest = math.min(soonest or holder.ends, holder.ends)
    end
  end
  pool.soonest = soonest or 0
end

-- A new holder with the next token, which the caller writes.
local function holder_new(pool, id, weight, ms, inbox)
  pool.token = pool.token >= now and pool.token + 1 or now
  if pool.used == 0 then pool.soonest = 0 end
  if pool.indexed then pool.indexed = pool.indexed + 1 end
  pool.used = pool.used + weight
  return { id = id, ends = now + ms, token = pool.token, weight = weight, at = now, inbox = inbox, index = pool.indexed }
end

-- Grants to the first waiters while they fit, strictly in order: if a light claim could overtake a heavy one, readers would
-- starve a writer. The claim of this call (`asking`) learns of its grant from the reply. True if an inbox other than `own` was
-- notified.
local function grant_waiters(pool, asking, own)
  local others, queue = false, pool.queue
  while true do
    local first = queue_first(queue)
    if not first or pool.used + first.weight > pool.capacity or not queue_spend(queue, GRANT_COST) then return others end
    queue_take(queue, first)
    local window = math.min(first.ms, GRANT_WINDOW)
    local holder = holder_new(pool, first.id, first.weight, window, first.inbox)
    holder_write(pool, holder)
    if first.id ~= asking then
      local message = first.mode == 'g'
        and grant_message(first.seen, first.id, holder.token, first.attempt, window) or 'R ' .. first.id
      if notify(first.inbox, message) then
        others = others or first.inbox ~= own
      elseif now - first.seen > ABSENT_AFTER then
        holder_delete(pool, holder)
      elseif window > UNNOTIFIED_WINDOW then
        holder.ends = now + UNNOTIFIED_WINDOW
        holder_write(pool, holder)
      end
    end
  end
end

-- Writes what changed, together with one holder, or deletes the field of one.
local function pool_close(pool, holder, deleted)
  if pool.used == 0 and pool.queue.head == pool.queue.tail then
    if (pool.indexed or 0) > 0 then index_holders(pool, {}) end
    call('HDEL', pool.key, 'c', 'u', 'x', 'y', 'm', deleted or 'm')
    if pool.token > 0 then call('HSET', pool.key, 't', text(pool.token)) end
    call('PEXPIRE', pool.key, pool_ttl(0, pool.token))
    return
  end
  if deleted then call('HDEL', pool.key, deleted) end
  local field, value = 'm', pool.indexed and text(pool.indexed)
  if holder and holder.index then
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
  call('PEXPIRE', pool.key, pool_ttl(math.max(0, pool.latest - now), pool.token))
end
