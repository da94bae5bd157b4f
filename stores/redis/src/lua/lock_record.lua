
-- The lock record of a mutex. Three keys in one hash slot:
--   lock    the lock id of the holder, expiring with the lease, and nothing else: every program that uses SET NX PX and
--           compare-and-delete shares the mutex with us
--   record  "token acquired-at mark" of our last holder. It outlives the release, so that tokens keep rising; if another
--           program holds the lock, only the token still counts. Every name ever used has one, so it is short: an acquired-at
--           of 0 means that it equals the token, and the mark is the end of the lock id. (The previous version wrote the
--           inbox and the whole lock id as the mark.)
--   queue   the wait queue; there is no such key while no waiter is registered

-- How long the record is kept: for the rest of the lease and the retention after it, and longer if the token is ahead of the
-- clock, because then the clock alone would not produce a higher one.
local function record_ttl(left, token) return text(left + RETENTION + math.max(0, token - now)) end

-- In a batch the start of the record and its time to live rarely change from one item to the next.
local head, ttl, head_token, ttl_ms = nil, nil, nil, nil

-- Writes the record of a new holder and returns its token: one more than the last token, or the clock if that is higher.
local function write_record(record, id, last, ms)
  local previous, token = last and tonumber(match(last, '^%d+')), now
  if previous and previous >= token then token = previous + 1 end
  if token ~= head_token or ms ~= ttl_ms then
    head, ttl = format('%d %d ', token, token == now and 0 or now), record_ttl(ms, token)
    head_token, ttl_ms = token, ms
  end
  call('SET', record, head .. string.sub(id, -MARK), 'PX', ttl)
  return token
end

-- Makes a lock id the holder of a free lock and returns its token.
local function hold(lock, record, id, ms)
  local token = write_record(record, id, call('GET', record), ms)
  call('SET', lock, id, 'PX', ms)
  return token
end
