
-- Locks only (two keys and four words each): one look at all of them, and one call for each that is ours. Up to the
-- first whose side needs more than that: another token, or so old that its life may have to be extended as well.
pcall(function()
  local items = #KEYS / 2
  if #ARGV - 1 ~= items * 4 then return end
  local values, old = call('MGET', unpack(KEYS)), clock() - RETENTION / 2
  for i = 1, items do
    local token, words, code = ARGV[a + 3], values[2 * i], 0
    if values[2 * i - 1] == ARGV[a + 1] then
      if not words or match(words, '^%d+') ~= token or tonumber(token) < old then return end
      code = call('PEXPIRE', KEYS[k], ARGV[a + 2])
    end
    reply[n + 1] = code
    n, k, a = n + 1, k + 2, a + 4
  end
end)
if not ARGV[a] then
  reply[1] = now
  return reply
end
