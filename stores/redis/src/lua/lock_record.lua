
-- The lock record of a mutex. Its keys, in one hash slot:
--   lock    "LOCK-ID TOKEN" of the holder, expiring with the lease: every program that uses SET NX PX and compare-and-delete
--           shares the mutex with us. The value of another program is anything else.
--   queue   the wait queue; there is no such key while no waiter is registered
-- One more key serves all mutexes of a server, or of a hash slot of a Cluster:
--   tokens  the last token. Tokens are at least the server's clock in µs, so they rise although a released lock leaves nothing
--           behind, and also if this key is lost.

-- Makes a lock id the holder of a free lock and returns its token.
local function hold(lock, id, ms)
  local token = draw_token()
  call('SET', lock, id .. ' ' .. text(token), 'PX', ms)
  return token
end

-- Whether the value of a lock key is that of a lock id, and its token.
local function token_of(value, id)
  if not value or string.sub(value, 1, #id + 1) ~= id .. ' ' then return nil end
  return tonumber(match(value, '^%d+$', #id + 2))
end
