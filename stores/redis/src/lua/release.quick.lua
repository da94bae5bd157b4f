
-- Locks only (three keys and two words each), and nobody waits for any of them. An error leaves all to the slow way,
-- where it shows.
pcall(function()
  local items = #KEYS / 3
  if #ARGV - 1 ~= items * 2 then return end
  local keys, lines = {}, {}
  for i = 1, items do keys[i], lines[i] = KEYS[3 * i - 2], KEYS[3 * i] end
  if call('EXISTS', unpack(lines)) > 0 then return end
  local holders, ours = call('MGET', unpack(keys)), {}
  for i = 1, items do
    local held = holders[i] == ARGV[2 * i + 1]
    if held then ours[#ours + 1] = keys[i] end
    reply[i + 1] = held and 1 or 0
  end
  if ours[1] then call('DEL', unpack(ours)) end
  a = #ARGV + 1
end)
if not ARGV[a] then return reply end
