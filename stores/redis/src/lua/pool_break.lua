-- Takes pools from all their holders by force, notifies them, and grants to the first waiters.
--
-- KEYS   of each pool: its record (see pool_record.lua)
-- ARGV   1  grant window in ms, 2  a batch (see batch.lua) without words
-- Reply  a batch with one value for each (see inspection.lua): the former holders, no waiters

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS, GRANT_WINDOW = #KEYS, 2, tonumber(ARGV[1])
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include pool_record.lua
-- include inspection.lua

return for_each(1, 1, function(i)
  local pool = pool_open(KEYS[i])
  local capacity, holders = pool.capacity, holders_of(pool)
  local broken = pool_holders(holders)
  for _, holder in ipairs(holders) do
    call('HDEL', pool.key, 'o:' .. holder.id, holder.index and 'k:' .. text(holder.index) or 'k')
    if holder.ends > now then notify_broken(holder.id) end
  end
  pool.used, pool.indexed = 0, pool.indexed and 0
  grant_waiters(pool, nil)
  queue_first(pool.queue)
  pool_close(pool)
  return { capacity, broken, {}, pool.queue.more and 0 or -1 }
end)
