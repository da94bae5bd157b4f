
-- Many locks: one look at all of them, and one call for each that is ours. Up to the first whose side has another token.
-- The answer is the clock as text if all are ours.
if count then
  local codes, lost, done = {}, false, 0
  pcall(function()
    local values, find, byte = call('MGET', unpack(KEYS)), string.find, string.byte
    local id_at, id_step, ms_at, ms_step, token_at, token_step = base[2], step[2], base[3], step[3], base[4], step[4]
    local old, wish, always = text(clock() - half), nil, nil
    for i = 1, count do
      local token, ms, words, code = ARGV[token_at + token_step * i], ARGV[ms_at + ms_step * i], values[count + i], 0
      if values[i] == ARGV[id_at + id_step * i] then
        if ms ~= wish then wish, always = ms, ms + 0 > half end
        if not words or find(words, token, 1, true) ~= 1 or byte(words, #token + 1) ~= 32 then return end
        if not modern or call('PEXPIRE', KEYS[i], ms, 'GT') == 0 then longer(KEYS[i], ms) end
        -- Texts of as many digits compare as their numbers do.
        if (always or token < old or #token ~= #old) and side_due(token, ms) then
          call('PEXPIRE', KEYS[count + i], text(ms + RETENTION))
        end
        code = 1
      end
      if code == 0 then lost = true end
      codes[i], done = code, i
    end
  end)
  if done == count and not lost then return text(now) end
  for i = 1, done do reply[i + 1] = codes[i] end
  n = done + 1
  rows(done + 1)
end
