-- Takes mutexes from their holders by force, notifies them, and hands the locks to the first waiters.
--
-- KEYS   of each mutex: lock, record, queue (see lock_record.lua)
-- ARGV   1  grant window in ms, 2  a batch (see batch.lua) without words
-- Reply  a batch with one value for each (see inspection.lua): the former holder, no waiters

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS, GRANT_WINDOW = #KEYS / 3, 2, tonumber(ARGV[1])
-- include clock.lua
-- include batch.lua
-- include lock_record.lua
-- include wait_queue.lua
-- include lock_handoff.lua
-- include inspection.lua

return for_each(1, 1, function(i)
  local lock, record, queue_key = KEYS[i], KEYS[count + i], KEYS[2 * count + i]
  local holder = lock_holder(lock, record)
  local state = call('HMGET', queue_key, 'h', 'n', 'd')
  local queue = queue_open(queue_key, state[1], state[2], state[3])
  if holder[1] then
    call('DEL', lock)
    notify_broken(holder[1])
    hand_off(lock, record, queue, true)
  end
  return { 1, holder, {}, queue.more and 0 or -1 }
end)
