-- Each item: mode (l or p), lock id, expiry, token.

local reply, k, a = { now }, 1, ITEMS
while ARGV[a] do
  local id, ms, token = ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  if ARGV[a] == 'l' then
    answer(reply, pcall(lock_renew, KEYS[k], KEYS[k + 1], id, ms, token))
    k = k + 2
  else
    answer(reply, pcall(pool_renew, KEYS[k], id, ms, token))
    k = k + 1
  end
  a = a + 4
end
return reply
