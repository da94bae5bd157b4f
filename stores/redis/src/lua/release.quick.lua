
-- Many locks that nobody waits for. An error leaves all to the slow way, where it shows. The answer is 1 if all were ours.
if count then
  local done, answer = pcall(function()
    if call('EXISTS', unpack(KEYS, 2 * count + 1)) > 0 then return nil end
    local holders, id_at, id_step, ours = call('MGET', unpack(KEYS, 1, count)), base[2], step[2], 0
    for i = 1, count do
      if holders[i] == ARGV[id_at + id_step * i] then ours = ours + 1 end
    end
    if ours == count then
      call('DEL', unpack(KEYS, 1, count))
      return 1
    end
    local keys, codes = {}, { 0 }
    for i = 1, count do
      local held = holders[i] == ARGV[id_at + id_step * i]
      if held then keys[#keys + 1] = KEYS[i] end
      codes[i + 1] = held and 1 or 0
    end
    if ours > 0 then call('DEL', unpack(keys)) end
    return codes
  end)
  if done and answer then return answer end
  rows(1)
end
