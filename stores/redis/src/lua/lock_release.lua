-- Releases mutexes and withdraws waiters, by lock id. A lock that becomes free is handed to its first waiter.
--
-- KEYS   of each mutex: lock, queue; then tokens (see lock_record.lua)
-- ARGV   1  grant window in ms: how long a pushed grant lasts until its waiter renews it
--        2  a batch (see batch.lua), of each lease: 1 lock id
-- Reply  a code if it is that of all items, otherwise a batch with one code for each:
--          0 nothing was held or queued under the lock id, 1 released, 2 released and another process was notified,
--          UNFINISHED, UNFINISHED_NOT_OURS (see batch.lua), or the text of an error

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, TOKENS = (#KEYS - 1) / 2, KEYS[#KEYS]

-- Whether the value of a lock key is that of a lock id. Behind the id stands a token and nothing else: another lock id may begin
-- with this one and a space.
local function is_of(value, id)
  return value and string.sub(value, 1, #id + 1) == id .. ' ' and string.find(value, '^%d+$', #id + 2)
end

-- One lock without waiters. The reply is a number: a list costs the server as much as another command.
local only_holder = nil
if count == 1 then
  only_holder = call('GET', KEYS[1])
  local held = is_of(only_holder, ARGV[3])
  if call('EXISTS', KEYS[2]) == 0 then
    if held then call('DEL', KEYS[1]) end
    return held and 1 or 0
  end
end

-- A batch of locks without waiters: one command reads all of it and one deletes what is ours. If it raises an error, nothing
-- was deleted, and below each item fails or succeeds alone.
local COLUMNS, GRANT_WINDOW = 2, tonumber(ARGV[1])
if count > 1 then
  local ok, codes = pcall(function()
    if call('EXISTS', unpack(KEYS, count + 1, 2 * count)) > 0 then return nil end
    local holders = call('MGET', unpack(KEYS, 1, count))
    -- The lock ids are the only words, and they differ.
    local ours, found = {}, { 0 }
    for i = 1, count do
      local held = is_of(holders[i], ARGV[COLUMNS + i])
      if held then ours[#ours + 1] = KEYS[i] end
      found[i + 1] = held and 1 or 0
    end
    if ours[1] then call('DEL', unpack(ours)) end
    return #ours == count and 1 or found
  end)
  if ok and codes then return codes end
end

-- include clock.lua
-- include batch.lua
-- include tokens.lua
-- include lock_record.lua
-- include wait_queue.lua
-- include lock_handoff.lua

return for_each(1, 1, function(i)
  local lock, queue_key, id = KEYS[i], KEYS[count + i], word(1, i)
  local holder = only_holder
  if holder == nil then holder = call('GET', lock) end
  local held = is_of(holder, id)
  if held then call('DEL', lock) end
  local state = call('HMGET', queue_key, 'h', 'n', 'd', 'w:' .. id)
  local queue = queue_open(queue_key, state[1], state[2], state[3])
  local withdrawn, notified = queue_remove(queue, id, state[4]), nil
  if held or not holder then
    notified = hand_off(lock, queue, held or (withdrawn and withdrawn.mode == 'rw'))
    if queue.more and not notified then return (held or withdrawn) and UNFINISHED or UNFINISHED_NOT_OURS end
  elseif withdrawn then
    queue_first(queue)
  end
  if not held and not withdrawn then return 0 end
  return (notified and notified ~= inbox_of(id)) and 2 or 1
end)
