-- Releases mutexes and withdraws waiters, by lock id. A lock that becomes free is handed to its first waiter.
--
-- KEYS   of each mutex: lock, queue; then tokens (see lock_record.lua)
-- ARGV   1  grant window in ms: how long a pushed grant lasts until its waiter renews it
--        2  a batch (see batch.lua), of each lease: 1 "LOCK-ID TOKEN", as the lock of its holder has it
-- Reply  a code if it is that of all items, otherwise a batch with one code for each:
--          0 nothing was held or queued under the lock id, 1 released, 2 released and another process was notified,
--          UNFINISHED, UNFINISHED_NOT_OURS (see batch.lua), or the text of an error

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local count, TOKENS = (#KEYS - 1) / 2, KEYS[#KEYS]

-- The lock id of a word.
local function id_of(word) return string.match(word, '^(.*) %d+$') end

-- Whether the value of a lock key is that of a lock id, with whatever token. Behind the id stands a token and nothing else: another
-- lock id may begin with this one and a space.
local function is_of(value, id)
  return value and string.sub(value, 1, #id + 1) == id .. ' ' and string.find(value, '^%d+$', #id + 2)
end

-- One lock without waiters. The reply is a number: a list costs the server as much as another command. `queue_head`: the number of
-- the first queue entry; false without a queue, or an error. The whole word is compared first, which costs nothing.
local only_holder, queue_head = nil, nil
if count == 1 then
  only_holder, queue_head = call('GET', KEYS[1]), redis.pcall('HGET', KEYS[2], 'h')
  if not queue_head then
    local held = only_holder == ARGV[3] or is_of(only_holder, id_of(ARGV[3]))
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
    local lost = 0
    for i = 1, count do
      -- The words are the only ones, and they differ.
      local holder, word = holders[i], ARGV[COLUMNS + i]
      if holder ~= word and not is_of(holder, id_of(word)) then
        holders[i] = false
        lost = lost + 1
      end
    end
    if lost == 0 then
      call('DEL', unpack(KEYS, 1, count))
      return 1
    end
    local ours, found = {}, { 0 }
    for i = 1, count do
      if holders[i] then ours[#ours + 1] = KEYS[i] end
      found[i + 1] = holders[i] and 1 or 0
    end
    if ours[1] then call('DEL', unpack(ours)) end
    return found
  end)
  if ok and codes then return codes end
end

local format, match = string.format, string.match
local time = call('TIME')
-- include clock.lua
-- include tokens.lua
-- include messages.lua

-- One held lock whose first waiter is there and takes a grant, by far the most frequent handoff: few commands, and nothing of what
-- the rarer cases need. Until the lock is written nothing but the token is changed, and what fails is left to them.
if count == 1 and type(queue_head) == 'string' and is_of(only_holder, id_of(ARGV[3])) then
  local ok, code = pcall(function()
    local id, lock, queue_key, field = id_of(ARGV[3]), KEYS[1], KEYS[2], 'q:' .. queue_head
    local state = call('HMGET', queue_key, 'n', 'w:' .. id, field)
    local ends, seen, ms, mode, inbox, first = match(state[3] or '', '^(%d+) (%d+) (%d+) %d+ (%a+) (%S+) (.*)$')
    if state[2] or mode ~= 'g' or tonumber(ends) <= now then return nil end
    local window, index = math.min(tonumber(ms), GRANT_WINDOW), 'w:' .. first
    local attempt = match(call('HGET', queue_key, index) or '', '^%d+ (%d+)$') or '0'
    local token = format('%d', draw_token())
    call('SET', lock, first .. ' ' .. token, 'PX', format('%d', window))
    local next_head = tonumber(queue_head) + 1
    if next_head < tonumber(state[1]) then
      call('HDEL', queue_key, field, index)
      call('HSET', queue_key, 'h', format('%d', next_head))
    else
      call('HDEL', queue_key, field, index, 'h', 'n', 'd', 's')
    end
    if notify(inbox, grant_message(tonumber(seen), first, token, attempt, window)) then
      return inbox ~= inbox_of(id) and 2 or 1
    end
  end)
  if ok and code then return code end
end

-- include batch.lua
-- include lock_record.lua
-- include wait_queue.lua
-- include lock_handoff.lua

return for_each(1, 1, function(i)
  local lock, queue_key, id = KEYS[i], KEYS[count + i], id_of(word(1, i))
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
