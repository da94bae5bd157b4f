-- What every script begins with: the server's clock and the rules that both records share.
--
-- The clock is always the server's. Since Redis 5 a script replicates its effects, so reading TIME before a write
-- is allowed and a replica gets what was decided here, not another decision.
--
-- ARGV of every script:
--   1  what the channel of an inbox begins with
--   2  for how long the token of an unused name is kept, ms
--   3  for how long a grant that nobody asked for just now lasts, ms
--   4  '1' if PUBLISH counts every subscriber there is (one server; on a Cluster it counts those of this node)
--   5  after this moment of the server's clock an acquisition is refused, ms; 0 if it never is
-- From the sixth on: the items.
--
-- Every script holds up all clients of the server, and locks that nobody else wants are by far the most frequent case.
-- So those come first, in `quick.lua` of each verb: as few calls as it takes, one call for all items where the server
-- has a command that takes many keys. What is left goes item by item through the verb itself, and what more than one
-- want through the one function `contended`, which is run when it is first needed. Numbers are handed over as text: the
-- server writes a Lua number with "%.17g", which takes longer than the command.

local FAILED = 9

local call, format, match = redis.call, string.format, string.match
local now = nil

-- The clock in ms. A script sees one moment, however long it runs.
local function clock()
  if not now then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now
end

local function text(number) return format('%d', number) end

-- How long a key is kept: as long as it is of use (`left` ms) and for the retention time after that; longer if its
-- token ran ahead of the clock, since then the clock alone would not give a higher one.
local function kept(left, token)
  local ahead = token - now
  return text(left + ARGV[2] + (ahead > 0 and ahead or 0))
end

-- The lock record of a mutex. Its holder is the plain key: the lock id and its expiry, and nothing else, so that every
-- program that knows SET NX PX and compare-and-delete shares it with us. Beside it, in the same hash slot:
--   side   "token acquired-at inbox lock-id" of our last holder; stale, but for the token, if the plain key says
--          otherwise. It stays after the release, so that the count goes on. An inbox of "-" is none.
--   line   the queue of those who wait; no such key if nobody does

-- The beginning and the life of a side whose token is the clock, as nearly all are: written once for all items.
local head, life, life_of = nil, nil, nil

-- Writes the side of a new holder and returns its token. The rule of every lease store: one more than the last token,
-- or the clock if that is higher.
local function lock_side(side, id, inbox, last, ms)
  local token = clock()
  local before = last and tonumber(match(last, '^%d+'))
  if before and before >= token then
    token = before + 1
    call('SET', side, format('%d %d %s %s', token, now, inbox, id), 'PX', kept(ms, token))
  else
    head = head or format('%d %d ', now, now)
    if ms ~= life_of then life, life_of = kept(ms, now), ms end
    call('SET', side, head .. inbox .. ' ' .. id, 'PX', life)
  end
  return token
end

-- The items: where in KEYS and ARGV the current one begins, and what came of those before.
local reply, n, k, a = { 0 }, 1, 1, 6
