-- A first-come queue inside a hash, with everything in reach of one look-up however long it is:
--   h         number of the first place that may be taken
--   n         number of the next place to give
--   s         not before this moment is it searched for dead waiters again
--   q:NUMBER  who waits there: "ends seen expiry weight mode inbox lock-id"
--   w:LOCK-ID its number
-- `ends`: after this moment the waiter counts as gone. `seen`: the store's last decision on an attempt of it.
-- `mode`: g, a release may grant to it and tell it so; r, it is told to ask again; rw, it was told so.

clock()

local function queue_open(key, head, tail)
  return { key = key, head = tonumber(head) or 0, tail = tonumber(tail) or 0 }
end

local function queue_read(raw, number)
  local ends, seen, ms, weight, mode, inbox, id = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%a+) (%S+) (.*)$')
  if not ends then error('the queue was not written by distlock') end
  return {
    number = number, ends = tonumber(ends), seen = tonumber(seen), ms = tonumber(ms), weight = tonumber(weight),
    mode = mode, inbox = inbox, id = id,
  }
end

local function queue_write(queue, entry)
  local raw = format('%d %d %d %d %s %s %s', entry.ends, entry.seen, entry.ms, entry.weight, entry.mode, entry.inbox,
    entry.id)
  local number = text(entry.number)
  call('HSET', queue.key, 'q:' .. number, raw, 'w:' .. entry.id, number)
end

local function queue_drop(queue, entry)
  call('HDEL', queue.key, 'q:' .. text(entry.number), 'w:' .. entry.id)
end

-- The first who is not gone. Those before are forgotten, and so is the queue when nobody is left.
local function queue_first(queue)
  local begun = queue.head
  while queue.head < queue.tail do
    local raw = call('HGET', queue.key, 'q:' .. text(queue.head))
    if raw then
      local entry = queue_read(raw, queue.head)
      if entry.ends > now then
        if queue.head ~= begun then call('HSET', queue.key, 'h', text(queue.head)) end
        return entry
      end
      queue_drop(queue, entry)
    end
    queue.head = queue.head + 1
  end
  if queue.tail > 0 then
    call('HDEL', queue.key, 'h', 'n', 's')
    queue.head, queue.tail = 0, 0
  end
  return nil
end

local function queue_find(queue, id)
  if queue.tail == 0 then return nil end
  local number = call('HGET', queue.key, 'w:' .. id)
  local raw = number and call('HGET', queue.key, 'q:' .. number)
  return raw and queue_read(raw, tonumber(number)) or nil
end

local function queue_remove(queue, id)
  local entry = queue_find(queue, id)
  if entry then queue_drop(queue, entry) end
  return entry
end

-- Those who died behind a live first one would pile up. Once in a while a new one looks through all of them.
local function queue_sweep(queue)
  if now < (tonumber(call('HGET', queue.key, 's')) or 0) then return end
  local all = call('HGETALL', queue.key)
  for i = 1, #all, 2 do
    local number = match(all[i], '^q:(%d+)$')
    local entry = number and queue_read(all[i + 1], tonumber(number))
    if entry and entry.ends <= now then queue_drop(queue, entry) end
  end
  call('HSET', queue.key, 's', text(now + math.max(1000, #all)))
end

-- Adds a waiter at the end, or refreshes the entry it has: asking again keeps the place.
local function queue_put(queue, id, ms, ttl, inbox, weight, mode)
  local entry = queue_find(queue, id)
  local fresh = not entry
  entry = entry or { id = id, number = queue.tail }
  entry.ends, entry.seen, entry.ms, entry.weight = now + ttl, now, ms, weight
  entry.mode, entry.inbox = mode, inbox
  queue_write(queue, entry)
  if fresh then
    queue.tail = queue.tail + 1
    call('HSET', queue.key, 'n', text(queue.tail), 'h', text(queue.head))
    if queue.tail - queue.head > 2 then queue_sweep(queue) end
  end
end

-- What a waiter hears when it was granted to. `after` is a lower bound: the clock is read in whole milliseconds.
local function grant_message(entry, token, window)
  return format('G %d %d %d %s', token, math.max(0, now - entry.seen - 1), window, entry.id)
end

-- Sends a message to one process; false if it is surely not there to read it.
local function tell(inbox, message)
  local readers = call('PUBLISH', CHANNEL .. inbox, message)
  return readers > 0 or not COUNTS
end
