
-- What `inspect` and `break` reply for one resource:
--   {capacity, {id, token, acquired at, ms left, weight, … of each holder}, {id, weight, … of each waiter}, continue}
-- An unknown number is -1. `continue`: the queue entry at which the caller must continue, or -1.

-- The waiters from an entry on, and the entry at which the next call continues.
local function waiters_from(queue, from)
  local found, number = {}, math.max(from, queue.head)
  while number < queue.tail do
    if budget == 0 then return found, number end
    budget = budget - 1
    local raw = call('HGET', queue.key, 'q:' .. text(number))
    local _, last = gap_parse(raw)
    local entry = raw and not last and entry_parse(raw, number)
    if entry and entry.ends > now then
      found[#found + 1] = entry.id
      found[#found + 1] = entry.weight
    end
    number = (last or number) + 1
  end
  return found, -1
end

-- The holder of a mutex, which may be another program's: it has no token then. A token is the time of its grant in µs, unless
-- the clock was set back or a quorum wrote a higher one.
local function lock_holder(lock)
  local value = call('GET', lock)
  if not value then return {} end
  local id, token = match(value, '^(.+) (%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d+)$')
  if not id then return { value, -1, -1, call('PTTL', lock), 1 } end
  local at = math.floor(tonumber(token) / 1000)
  if at > now + 1000 then at = -1 end
  return { id, tonumber(token), math.min(at, now), call('PTTL', lock), 1 }
end

-- The live ones of these pool holders.
local function pool_holders(holders)
  local shown = {}
  for _, holder in ipairs(holders) do
    if holder.ends > now then
      for _, value in ipairs({ holder.id, holder.token, holder.at, holder.ends - now, holder.weight }) do
        shown[#shown + 1] = value
      end
    end
  end
  return shown
end

-- Notifies the process of a holder that its lock was broken.
local function notify_broken(id)
  local inbox = inbox_of(id)
  if inbox then call('PUBLISH', CHANNEL .. inbox, 'B ' .. id) end
end
