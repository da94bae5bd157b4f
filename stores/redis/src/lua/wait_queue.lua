
-- A first-come wait queue inside a hash. The cost of a step depends neither on the length of the queue nor on the number of
-- waiters that withdrew:
--   h           number of the first entry that may be live
--   n           number of the next entry
--   d           number of the entry at which the sweep for absent waiters continues
--   q:NUMBER    a waiter, "ends seen expiry weight mode inbox lock-id"; or the first or last entry of a gap, a run of entries
--               whose waiters withdrew: "0 0 0 0 x - FIRST LAST"
--   w:LOCK-ID   the number of its entry and of its newest attempt
-- `ends`: the waiter counts as absent after this moment. `seen`: the decision on its newest attempt.
-- `mode`: g, a release may grant the lock to it and push the grant; r, it is woken to ask again; rw, it was woken.
--
-- The previous version shares this queue. It writes no attempt number, which reads as 0, and reads a gap as an absent waiter.

-- How much a call does for waiters other than its caller before it leaves the rest to the next call: a script blocks every
-- other client of the server. Examining an entry costs 1, a grant GRANT_COST; the whole budget takes about 1 ms.
local budget, GRANT_COST = 300, 3

-- How many entries a new waiter sweeps. More than one, so that the sweep is faster than the growth.
local SWEEP = 4

local function queue_open(key, head, tail, sweep)
  head = tonumber(head) or 0
  return { key = key, head = head, saved = head, tail = tonumber(tail) or 0, sweep = tonumber(sweep) or 0 }
end

local function entry_parse(raw, number)
  local ends, seen, ms, weight, mode, inbox, id = match(raw, '^(%d+) (%d+) (%d+) (%d+) (%a+) (%S+) (.*)$')
  if not ends then error('the queue was not written by distlock') end
  return {
    number = number, ends = tonumber(ends), seen = tonumber(seen), ms = tonumber(ms), weight = tonumber(weight),
    mode = mode, inbox = inbox, id = id,
  }
end

-- The first and last number of the gap that an entry stands for; nil for a waiter and for no entry.
local function gap_parse(raw)
  local first, last = match(raw or '', '^0 0 0 0 x %- (%d+) (%d+)$')
  return tonumber(first), tonumber(last)
end

-- False once the budget is spent; `queue.more` then says that the next call must continue.
local function queue_spend(queue, cost)
  if budget < cost then
    queue.more = true
    return false
  end
  budget = budget - cost
  return true
end

-- Deletes what is left of a queue that has no waiters: `fields`, of its last entries, and its own.
local function queue_forget(queue, fields)
  for _, field in ipairs({ 'h', 'n', 'd', 's' }) do fields[#fields + 1] = field end
  call('HDEL', queue.key, unpack(fields))
  queue.head, queue.saved, queue.tail, queue.sweep = 0, 0, 0, 0
end

-- The first live waiter. Absent ones before it are deleted, and so is the queue when none is left. Nil with `queue.more`: the
-- budget is spent and the next call may find one.
local function queue_first(queue)
  if queue.first or queue.tail == 0 then return queue.first end
  local absent = {}
  while not queue.first and queue.head < queue.tail do
    local field = 'q:' .. text(queue.head)
    local raw = call('HGET', queue.key, field)
    local ends, id = match(raw or '', '^(%d+) %d+ %d+ %d+ %a+ %S+ (.*)$')
    if raw and not ends then error('the queue was not written by distlock') end
    if raw and tonumber(ends) > now then
      queue.first = entry_parse(raw, queue.head)
    elseif not queue_spend(queue, 1) then
      break
    else
      local _, last = gap_parse(raw)
      if raw then
        absent[#absent + 1] = field
        absent[#absent + 1] = last and 'q:' .. text(last) or 'w:' .. id
      end
      queue.head = (last or queue.head) + 1
    end
  end
  if queue.head >= queue.tail then
    queue_forget(queue, absent)
    return nil
  end
  if absent[1] then call('HDEL', queue.key, unpack(absent)) end
  if queue.head ~= queue.saved then call('HSET', queue.key, 'h', text(queue.head)) end
  queue.saved = queue.head
  return queue.first
end

-- The entry of a lock id; nil if there is none. `index`: the value of its field w:LOCK-ID, or false, if the caller has read it.
local function queue_find(queue, id, index)
  if queue.tail == 0 then return nil end
  if index == nil then index = call('HGET', queue.key, 'w:' .. id) end
  local number, attempt = match(index or '', '^(%d+) ?(%d*)$')
  local raw = number and call('HGET', queue.key, 'q:' .. number)
  local entry = raw and entry_parse(raw, tonumber(number))
  if not entry or entry.id ~= id then return nil end
  entry.attempt = tonumber(attempt) or 0
  return entry
end

-- Deletes a waiter's entry, and the queue with its last one. Behind the first entry that leaves a gap, which is joined with the
-- gaps on both sides.
local function queue_delete(queue, entry)
  local number, fields = entry.number, { 'q:' .. text(entry.number), 'w:' .. entry.id }
  if number <= queue.head then
    if number == queue.head then queue.head, queue.first = number + 1, nil end
    if queue.head >= queue.tail then
      queue_forget(queue, fields)
    else
      call('HDEL', queue.key, unpack(fields))
    end
    return
  end
  local before, behind = 'q:' .. text(number - 1), 'q:' .. text(number + 1)
  local around = call('HMGET', queue.key, before, behind)
  local first, _ = gap_parse(around[1])
  local _, last = gap_parse(number + 1 < queue.tail and around[2])
  if first then fields[#fields + 1] = before end
  if last then fields[#fields + 1] = behind end
  call('HDEL', queue.key, unpack(fields))
  first, last = first or number, last or number
  local gap = format('0 0 0 0 x - %d %d', first, last)
  if first <= queue.sweep and queue.sweep <= last then queue.sweep = last + 1 end
  call('HSET', queue.key, 'q:' .. text(first), gap, 'q:' .. text(last), gap, 'd', text(queue.sweep))
end

-- Deletes the entry of a lock id and returns it; nil if there is none. `index` as for queue_find.
local function queue_remove(queue, id, index)
  local entry = queue_find(queue, id, index)
  if entry then queue_delete(queue, entry) end
  return entry
end

-- Waiters that died behind a live one would accumulate: each new waiter examines a few entries, cycling through the queue.
local function queue_sweep(queue)
  if queue.sweep <= queue.head or queue.sweep >= queue.tail then queue.sweep = queue.head + 1 end
  local from, stop, fields = queue.sweep, math.min(queue.sweep + SWEEP, queue.tail), {}
  for number = from, stop - 1 do fields[#fields + 1] = 'q:' .. text(number) end
  local found = call('HMGET', queue.key, unpack(fields))
  while queue.sweep < stop do
    local number = queue.sweep
    local raw = found[number - from + 1]
    local _, last = gap_parse(raw)
    queue.sweep = (last or number) + 1
    if raw and not last and tonumber(match(raw, '^%d+')) <= now then queue_delete(queue, entry_parse(raw, number)) end
  end
  if queue.sweep >= queue.tail then queue.sweep = 0 end
end

-- How long a waiter with this entry sleeps, in ms, if it is so far behind that this is longer than usual; otherwise 0. Waiters that
-- withdrew have a number and no fields; each other entry has two. A user without the right to HLEN waits as if none had.
local function queue_pause(queue, number)
  local before = COUNTS and number - queue.head or 0
  if before * PAUSE_PER_WAITER <= ASKS_EVERY then return 0 end
  local fields = redis.pcall('HLEN', queue.key)
  if type(fields) == 'number' then before = math.min(before, math.floor(fields / 2)) end
  local pause = math.min(before * PAUSE_PER_WAITER, LONGEST_PAUSE)
  return pause > ASKS_EVERY and pause or 0
end

-- The second value of a busy reply: the time until it is worth asking again, and the pause of a waiter far behind.
local function busy_text(left, pause) return pause > 0 and format('%d %d', left, pause) or left end

-- Appends a waiter, or refreshes its entry in place. An attempt applied after a later one of the same lock id changes nothing.
-- `index` as for queue_find. `pauses`: it may sleep for longer if it is far behind; its entry then lives as much longer. Returns by
-- how much.
local function queue_put(queue, id, ms, ttl, inbox, weight, mode, attempt, index, pauses)
  local entry = queue_find(queue, id, index)
  if entry and entry.attempt > attempt then return 0 end
  local number = entry and entry.number or queue.tail
  if number == queue.head then queue.first = nil end
  local pause = pauses and queue_pause(queue, number) or 0
  local raw = format('%d %d %d %d %s %s %s', now + ttl + pause, now, ms, weight, mode, inbox, id)
  local index_text = format('%d %d', number, attempt)
  if entry then
    call('HSET', queue.key, 'q:' .. text(number), raw, 'w:' .. id, index_text)
    return pause
  end
  if number - queue.head > 1 then queue_sweep(queue) end
  queue.tail, queue.saved = number + 1, queue.head
  call('HSET', queue.key, 'q:' .. text(number), raw, 'w:' .. id, index_text, 'n', text(queue.tail), 'h', text(queue.head),
    'd', text(queue.sweep))
  return pause
end

-- Removes the first waiter in order to grant to it, and reads its attempt number for the message.
local function queue_take(queue, first)
  first.attempt = match(call('HGET', queue.key, 'w:' .. first.id) or '', '^%d+ (%d+)$') or '0'
  queue_delete(queue, first)
end
