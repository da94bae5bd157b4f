
clock()
local deadline = tonumber(ARGV[5])
if deadline > 0 and now > deadline then
  -- Whoever asked has given up by now and may have withdrawn already: a grant would be nobody's.
  return { now }
end

-- Locks only (three keys and five words each), and nobody waits for any of them: up to the first that is held. NX, and
-- not a look beforehand, since one name may be there twice. An error leaves its item to the slow way, where it shows.
pcall(function()
  local items = #KEYS / 3
  if #ARGV - 5 ~= items * 5 then return end
  local sides, lines = {}, {}
  for i = 1, items do sides[i], lines[i] = KEYS[3 * i - 1], KEYS[3 * i] end
  if call('EXISTS', unpack(lines)) > 0 then return end
  local last = call('MGET', unpack(sides))
  for i = 1, items do
    local id, ms = ARGV[a + 1], ARGV[a + 2]
    if not call('SET', KEYS[k], id, 'NX', 'PX', ms) then return end
    reply[n + 1], reply[n + 2] = 1, lock_side(sides[i], id, ARGV[a + 4], last[i], ms)
    n, k, a = n + 2, k + 3, a + 5
  end
end)
if not ARGV[a] then
  reply[1] = now
  return reply
end
