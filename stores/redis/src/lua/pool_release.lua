-- Releases holders of pools and withdraws waiters, by lock id. The weight that becomes free goes to the first waiters.
--
-- KEYS   of each pool: its record (see pool_record.lua)
-- ARGV   1  grant window in ms: how long a pushed grant lasts until its waiter renews it
--        2  a batch (see batch.lua), of each lease: 1 lock id
-- Reply  a batch with one code for each lease, as in lock_release.lua

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS, GRANT_WINDOW = #KEYS, 2, tonumber(ARGV[1])
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include pool_record.lua

return for_each(1, 1, function(i)
  local id, pool = word(1, i), pool_open(KEYS[i])
  local queue = pool.queue
  if pool.used == 0 and queue.tail == 0 then return 0 end
  delete_expired(pool)
  local holder, deleted = holder_find(pool, id), nil
  if holder and holder.index then
    holder_delete(pool, holder)
  elseif holder then
    pool.used, deleted = pool.used - holder.weight, 'o:' .. id
  end
  local withdrawn = queue_remove(queue, id)
  local ours = holder or withdrawn
  local others = grant_waiters(pool, nil, ours and ours.inbox)
  queue_first(queue)
  pool_close(pool, nil, deleted)
  if queue.more and pool.used < pool.capacity then return ours and UNFINISHED or UNFINISHED_NOT_OURS end
  if not ours then return 0 end
  return others and 2 or 1
end)
