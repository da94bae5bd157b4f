-- Takes mutexes from their holders by force, notifies them, and hands the locks to the first waiters.
--
-- KEYS   of each mutex: lock, queue; then tokens (see lock_record.lua)
-- ARGV   1  grant window in ms, 2  a batch (see batch.lua) without words
-- Reply  a batch with one value for each (see inspection.lua): the former holder, no waiters

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, TOKENS, COLUMNS, GRANT_WINDOW = (#KEYS - 1) / 2, KEYS[#KEYS], 2, tonumber(ARGV[1])
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include tokens.lua
-- include lock_record.lua
-- include messages.lua
-- include wait_queue.lua
-- include lock_handoff.lua
-- include inspection.lua

return for_each(1, 1, function(i)
  local lock, queue_key = KEYS[i], KEYS[count + i]
  local holder = lock_holder(lock)
  local state = call('HMGET', queue_key, 'h', 'n', 'd')
  local queue = queue_open(queue_key, state[1], state[2], state[3])
  if holder[1] then
    call('DEL', lock)
    notify_broken(holder[1])
    hand_off(lock, queue, true)
  end
  return { 1, holder, {}, queue.more and 0 or -1 }
end)
