-- Acquires weight in pools: semaphores, reader-writer locks and fair queues.
--
-- KEYS   of each pool: its record (see pool_record.lua)
-- ARGV   1  deadline on the server's clock in µs: after it the caller has given up, and nothing is granted
--        2  grant window in ms: how long a pushed grant lasts until its waiter renews it
--        3  a batch (see batch.lua), of each claim: 1 lock id, 2 expiry in ms, 3 mode of its queue entry (g or r), 4 time to
--           live of that entry in ms, 0 if it does not wait, 5 inbox, 6 number of the attempt, 7 weight, 8 capacity, 9 sent as 1 by
--           a claim that resizes: a pool in use gets this capacity
-- Reply  {clock} if the deadline has passed; otherwise a batch with two values for each claim:
--          1, token         granted
--          0, ms            busy; the time until it is worth asking again, -1 if unknown
--          2, capacity      the pool is in use with this other capacity
--          UNFINISHED, 0    see batch.lua
--          FAILED, text     this claim failed alone

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS, GRANT_WINDOW = #KEYS, 3, tonumber(ARGV[2])
local time = call('TIME')
-- include clock.lua
-- A claim that is carried out late may follow its own withdrawal: a grant would have no holder.
if now_us > tonumber(ARGV[1]) then return { now } end
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include pool_record.lua

return for_each(1, 2, function(i)
  local id, ms, mode, ttl, inbox = word(1, i), tonumber(word(2, i)), word(3, i), tonumber(word(4, i)), word(5, i)
  local attempt, weight, capacity = tonumber(word(6, i)), tonumber(word(7, i)), tonumber(word(8, i))
  local resizes = word(9, i) == '1'
  local pool = pool_open(KEYS[i])
  local queue = pool.queue
  delete_expired(pool)
  local first = queue_first(queue)
  if not queue.more then
    if (pool.used > 0 or first) and pool.capacity ~= capacity and not resizes then
      pool_close(pool)
      return 2, pool.capacity
    end
    pool.capacity = capacity
    grant_waiters(pool, id)
  end

  -- Granted just now from the queue; or the same claim again: a retry whose reply was lost, or a grant that was pushed to it.
  local holder = holder_find(pool, id)
  if holder then
    -- Never shorten the lease: this attempt may be applied after a later request.
    holder.ends = math.max(holder.ends, now + ms)
    pool_close(pool, holder)
    return 1, holder.token
  end
  if queue.more then
    pool_close(pool)
    return UNFINISHED, 0
  end

  first = queue_first(queue)
  if (not first or first.id == id) and pool.used + weight <= capacity then
    if first then queue_delete(queue, first) end
    holder = holder_new(pool, id, weight, ms, inbox)
    pool_close(pool, holder)
    return 1, holder.token
  end

  local retry = pool.used > 0 and pool.soonest or nil
  if first and first.id ~= id then retry = math.min(retry or first.ends, first.ends) end
  if ttl > 0 then
    queue_put(queue, id, ms, ttl, inbox, weight, mode, attempt)
    pool.latest = math.max(pool.latest, now + ttl)
    if not pool.indexed and queue.tail - queue.head > LONG_QUEUE then index_holders(pool, (holders_of(pool))) end
  elseif queue_remove(queue, id) then
    grant_waiters(pool, id)
  end
  queue_first(queue)
  pool_close(pool)
  return 0, retry and math.max(0, retry - now) or -1
end)
