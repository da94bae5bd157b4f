-- Each item: mode (l or p), lock id.

local reply, k, a = { now }, 1, ITEMS
while ARGV[a] do
  if ARGV[a] == 'l' then
    answer(reply, pcall(lock_release, KEYS[k], KEYS[k + 1], ARGV[a + 1]))
    k = k + 2
  else
    answer(reply, pcall(pool_release, KEYS[k], ARGV[a + 1]))
    k = k + 1
  end
  a = a + 2
end
return reply
