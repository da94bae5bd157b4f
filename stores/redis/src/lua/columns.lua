
-- Many locks come by columns: what all of them have in common is said once. KEYS: all plain keys, all sides, all lines (an
-- extension has no lines). ARGV[2] has a letter for each word of an item, `1` if it is the same for all and `n` if not;
-- behind it stand the words, one or as many as there are locks. So the word C of the lock I is
-- ARGV[base[C] + step[C] * I].
local count, base, step = nil, nil, nil
local letter = string.byte(ARGV[2])
if letter == 49 or letter == 110 then
  count, base, step = #KEYS / WIDTH, {}, {}
  local at = 3
  for c = 1, #ARGV[2] do
    local own = string.sub(ARGV[2], c, c) == 'n'
    base[c], step[c] = own and at - 1 or at, own and 1 or 0
    at = at + (own and count or 1)
  end
end

-- What is left, from this lock on, as items one after the other.
local function rows(from)
  local keys, words = {}, { ARGV[1] }
  for i = from, count do
    for w = 0, WIDTH - 1 do keys[#keys + 1] = KEYS[w * count + i] end
    local one_attempt = string.byte(ARGV[base[1] + step[1] * i]) == 111
    for c = 1, one_attempt and 3 or #base do words[#words + 1] = ARGV[base[c] + step[c] * i] end
  end
  KEYS, ARGV = keys, words
end
