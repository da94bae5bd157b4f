-- Shows the holder and the waiters of mutexes.
--
-- KEYS   of each mutex: lock, queue; then tokens, which is not read (see lock_record.lua)
-- ARGV   1  a batch (see batch.lua), of each mutex: 1 the number of the queue entry at which to start
-- Reply  a batch with one value for each (see inspection.lua)

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS = (#KEYS - 1) / 2, 1
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include inspection.lua

return for_each(1, 1, function(i)
  local state = call('HMGET', KEYS[count + i], 'h', 'n', 'd')
  local queue = queue_open(KEYS[count + i], state[1], state[2], state[3])
  local waiters, continue = waiters_from(queue, tonumber(word(1, i)))
  return { 1, lock_holder(KEYS[i]), waiters, continue }
end)
