-- A first-come queue inside a hash. What one step costs depends neither on its length nor on how many withdrew:
--   h         number of the first entry that may be taken
--   n         number of the next entry to give
--   d         number of the entry at which the search for gone waiters continues
--   q:NUMBER  a waiter: "ends seen expiry weight mode inbox lock-id"; or the first or last of a run of numbers whose
--             waiters withdrew: "0 0 0 0 x - FIRST LAST"
--   w:LOCK-ID its number and the number of its newest attempt
-- `ends`: after this moment the waiter counts as gone. `seen`: the store's decision on its newest attempt.
-- `mode`: g, a release may grant to it and tell it so; r, it is told to ask again; rw, it was told so.
--
-- The previous version shares this queue: it writes no attempt, which reads as 0, and takes a run for a gone waiter.

clock()

-- How many entries a new waiter looks at for gone waiters. More than one, so that the search is faster than the growth.
local SEARCH = 4

local function queue_open(key, head, tail, search)
  head = tonumber(head) or 0
  return { key = key, head = head, saved = head, tail = tonumber(tail) or 0, search = tonumber(search) or 0 }
end

local function queue_read(raw, number)
  local ends, seen, ms, weight, mode, inbox, id = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%a+) (%S+) (.*)$')
  if not ends then error('the queue was not written by distlock') end
  return {
    number = number, ends = tonumber(ends), seen = tonumber(seen), ms = tonumber(ms), weight = tonumber(weight),
    mode = mode, inbox = inbox, id = id,
  }
end

-- The first and the last number of the run that an entry stands for; nil if it is a waiter or nothing.
local function queue_run(raw)
  local first, last = match(raw or '', '^0 0 0 0 x %- (%d+) (%d+)$')
  return tonumber(first), tonumber(last)
end

-- False if this call has done enough.
local function queue_spend(queue, cost)
  if budget < cost then
    queue.more = true
    return false
  end
  budget = budget - cost
  return true
end

-- The first waiter that is not gone. Those before it are forgotten, and so is the queue when none is left. Nil with
-- `queue.more`: there may be one, and the next call finds it.
local function queue_first(queue)
  if queue.first or queue.tail == 0 then return queue.first end
  local gone = {}
  while not queue.first and queue.head < queue.tail do
    local field = 'q:' .. text(queue.head)
    local raw = call('HGET', queue.key, field)
    local ends, id = match(raw or '', '^(%d+) %d+ %d+ %d+ %a+ %S+ (.*)$')
    if raw and not ends then error('the queue was not written by distlock') end
    if raw and tonumber(ends) > now then
      queue.first = queue_read(raw, queue.head)
    elseif not queue_spend(queue, 1) then
      break
    else
      local _, last = queue_run(raw)
      if raw then
        gone[#gone + 1] = field
        gone[#gone + 1] = last and 'q:' .. text(last) or 'w:' .. id
      end
      queue.head = (last or queue.head) + 1
    end
  end
  if gone[1] then call('HDEL', queue.key, unpack(gone)) end
  if queue.head < queue.tail then
    if queue.head ~= queue.saved then call('HSET', queue.key, 'h', text(queue.head)) end
    queue.saved = queue.head
  else
    call('HDEL', queue.key, 'h', 'n', 'd', 's')
    queue.head, queue.saved, queue.tail, queue.search = 0, 0, 0, 0
  end
  return queue.first
end

local function queue_find(queue, id)
  if queue.tail == 0 then return nil end
  local number, attempt = match(call('HGET', queue.key, 'w:' .. id) or '', '^(%d+) ?(%d*)$')
  local raw = number and call('HGET', queue.key, 'q:' .. number)
  local entry = raw and queue_read(raw, tonumber(number))
  if not entry or entry.id ~= id then return nil end
  entry.attempt = tonumber(attempt) or 0
  return entry
end

-- Takes a waiter out. Behind the first one it leaves a gap, which becomes one run with the gaps on both sides.
local function queue_drop(queue, entry)
  local number, gone = entry.number, { 'q:' .. text(entry.number), 'w:' .. entry.id }
  if number <= queue.head then
    call('HDEL', queue.key, unpack(gone))
    if number == queue.head then queue.head, queue.first = number + 1, nil end
    return
  end
  local before, behind = 'q:' .. text(number - 1), 'q:' .. text(number + 1)
  local around = call('HMGET', queue.key, before, behind)
  local first, _ = queue_run(around[1])
  local _, last = queue_run(number + 1 < queue.tail and around[2])
  if first then gone[#gone + 1] = before end
  if last then gone[#gone + 1] = behind end
  call('HDEL', queue.key, unpack(gone))
  first, last = first or number, last or number
  local run = format('0 0 0 0 x - %d %d', first, last)
  if first <= queue.search and queue.search <= last then queue.search = last + 1 end
  call('HSET', queue.key, 'q:' .. text(first), run, 'q:' .. text(last), run, 'd', text(queue.search))
end

local function queue_remove(queue, id)
  local entry = queue_find(queue, id)
  if entry then queue_drop(queue, entry) end
  return entry
end

-- Waiters that died behind a live one would pile up: each new one looks at a few entries, on and on around the queue.
local function queue_sweep(queue)
  if queue.search <= queue.head or queue.search >= queue.tail then queue.search = queue.head + 1 end
  local at, stop, fields = queue.search, math.min(queue.search + SEARCH, queue.tail), {}
  for number = at, stop - 1 do fields[#fields + 1] = 'q:' .. text(number) end
  local found = call('HMGET', queue.key, unpack(fields))
  while queue.search < stop do
    local number = queue.search
    local raw = found[number - at + 1]
    local _, last = queue_run(raw)
    queue.search = (last or number) + 1
    if raw and not last and tonumber(match(raw, '^%d+')) <= now then queue_drop(queue, queue_read(raw, number)) end
  end
  if queue.search >= queue.tail then queue.search = 0 end
end

-- Adds a waiter at the end, or refreshes the entry it has: asking again keeps the place. An attempt that is applied after
-- a later one of the same lock id changes nothing.
local function queue_put(queue, id, ms, ttl, inbox, weight, mode, attempt)
  local entry = queue_find(queue, id)
  if entry and entry.attempt > attempt then return end
  local number = entry and entry.number or queue.tail
  if number == queue.head then queue.first = nil end
  local raw = format('%d %d %d %d %s %s %s', now + ttl, now, ms, weight, mode, inbox, id)
  local place = format('%d %d', number, attempt)
  if entry then
    call('HSET', queue.key, 'q:' .. text(number), raw, 'w:' .. id, place)
    return
  end
  if number - queue.head > 1 then queue_sweep(queue) end
  queue.tail, queue.saved = number + 1, queue.head
  call('HSET', queue.key, 'q:' .. text(number), raw, 'w:' .. id, place, 'n', text(queue.tail), 'h', text(queue.head), 'd',
    text(queue.search))
end

-- Takes out the first waiter, to grant to it.
local function queue_take(queue, first)
  first.attempt = match(call('HGET', queue.key, 'w:' .. first.id) or '', '^%d+ (%d+)$') or '0'
  queue_drop(queue, first)
end

-- What a waiter hears when it was granted to. `after` counts from the decision on the attempt that the message repeats.
-- It is a lower bound: the clock is read in whole milliseconds.
local function grant_message(entry, token, window)
  local after = math.max(0, now - entry.seen - 1)
  return format('P %d %d %d %s %s', token, after, window, entry.attempt, entry.id)
end

-- Sends a message to one process; false if it is surely not there to read it.
local function tell(inbox, message)
  local readers = call('PUBLISH', CHANNEL .. inbox, message)
  return readers > 0 or not COUNTS
end
