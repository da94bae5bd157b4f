
-- Locks only (three keys; three words, or five if they wait), and nobody waits for any of them: up to the first that is
-- held. NX, and not a look beforehand, since one name may be there twice. An error leaves its item to the slow way, where
-- it shows.
pcall(function()
  local items = #KEYS / 3
  local words = (#ARGV - 1) / items
  if words ~= 3 and words ~= 5 then return end
  local sides, lines = {}, {}
  for i = 1, items do sides[i], lines[i] = KEYS[3 * i - 1], KEYS[3 * i] end
  if call('EXISTS', unpack(lines)) > 0 then return end
  local last, letter = call('MGET', unpack(sides)), words == 3 and 111 or 108
  for i = 1, items do
    local id, ms, inbox = ARGV[a + 1], ARGV[a + 2], words == 5 and ARGV[a + 4] or '-'
    if string.byte(ARGV[a]) ~= letter or not call('SET', KEYS[k], id, 'NX', 'PX', ms) then return end
    reply[n + 1], reply[n + 2] = 1, lock_side(sides[i], id, inbox, last[i], ms)
    n, k, a = n + 2, k + 3, a + words
  end
end)
if not ARGV[a] then
  reply[1] = now
  return reply
end
