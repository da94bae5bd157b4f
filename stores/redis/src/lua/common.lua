
-- What stands for an item that failed, and for one that the caller has to send again at once, since there were too many
-- gone waiters to look at. Of a release: it was released, and nothing was ours.
local FAILED, UNFINISHED, UNFINISHED_NOT_OURS = 9, 5, 6

-- How much a call does for waiters that ask for nothing now, before it leaves the rest to the next one: it holds up every
-- other client of the server. To look at one costs 1, to grant to one GRANT; all of it takes about 1 ms.
local budget, GRANT = 300, 3

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
  return text(left + RETENTION + (ahead > 0 and ahead or 0))
end

-- The lock record of a mutex. Its holder is the plain key: the lock id and its expiry, and nothing else, so that every
-- program that knows SET NX PX and compare-and-delete shares it with us. Beside it, in the same hash slot:
--   side   "token acquired-at mark" of our last holder; stale, but for the token, if the plain key says otherwise. It
--          stays after the release, so that the count goes on. It is short, since every name that was ever used has
--          one: an acquired-at of 0 is the token, the mark is the end of the lock id. The previous version wrote the
--          inbox and the whole lock id instead.
--   line   the queue of those who wait; no such key if nobody does

-- The beginning and the life of the last side that was written, and its token and expiry, from which they were made: in a
-- batch the next one's are nearly always the same.
local head, life, head_token, life_ms = nil, nil, nil, nil

-- Writes the side of a new holder and returns its token. The rule of every lease store: one more than the last token,
-- or the clock if that is higher.
local function lock_side(side, id, last, ms)
  local before, token = last and tonumber(match(last, '^%d+')), clock()
  if before and before >= token then token = before + 1 end
  if token ~= head_token or ms ~= life_ms then
    head, life, head_token, life_ms = format('%d %d ', token, token == now and 0 or now), kept(ms, token), token, ms
  end
  call('SET', side, head .. string.sub(id, -MARK), 'PX', life)
  return token
end

-- The items: where in KEYS and ARGV the current one begins, and what came of those before.
local reply, n, k, a = { 0 }, 1, 1, 2
