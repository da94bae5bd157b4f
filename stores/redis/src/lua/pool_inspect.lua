-- Shows the holders and the waiters of pools.
--
-- KEYS   of each pool: its record (see pool_record.lua)
-- ARGV   1  a batch (see batch.lua), of each pool: 1 the number of the queue entry at which to start
-- Reply  a batch with one value for each (see inspection.lua)

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS = #KEYS, 1
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include pool_record.lua
-- include inspection.lua

return for_each(1, 1, function(i)
  local pool = pool_open(KEYS[i])
  local waiters, continue = waiters_from(pool.queue, tonumber(word(1, i)))
  return { pool.capacity, pool_holders((holders_of(pool))), waiters, continue }
end)
