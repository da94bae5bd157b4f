-- Each item. A lock (two keys): mode, lock id, expiry, time to wait without asking again (0: one attempt), inbox.
-- A pool (one key): the same, then weight and capacity. `mode`: l or p; g or r, see the queue; t if in turn.

local deadline = tonumber(ARGV[5])
if deadline > 0 and now > deadline then
  -- Whoever asked has given up by now and may have withdrawn already: a grant would be nobody's.
  return { now }
end

local reply, k, a = { now }, 1, ITEMS
while ARGV[a] do
  local record, push, turn = match(ARGV[a], '^(%a)(%a)(%a?)')
  local id, ms, ttl, inbox = ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), ARGV[a + 4]
  if record == 'l' then
    answer(reply, pcall(lock_acquire, KEYS[k], KEYS[k + 1], id, ms, ttl, inbox, push, turn == 't'))
    k, a = k + 2, a + 5
  else
    answer(reply, pcall(pool_acquire, KEYS[k], id, ms, ttl, inbox, push, tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])))
    k, a = k + 1, a + 7
  end
end
return reply
