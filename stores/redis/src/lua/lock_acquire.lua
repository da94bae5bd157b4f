-- Acquires mutexes.
--
-- KEYS   of each mutex: lock, queue; then tokens (see lock_record.lua)
-- ARGV   1  deadline on the server's clock in µs: after it the caller has given up, and nothing is granted
--        2  a batch (see batch.lua), of each claim:
--             1 lock id, 2 expiry in ms, 3 mode: g or r for its queue entry, followed by t if it must not overtake waiters,
--             4 time to live of its queue entry in ms, 0 if it does not wait, 5 inbox, 6 number of the attempt
-- Reply  the token as text if all were granted with the clock in µs as their token; {clock} if the deadline has passed; otherwise a
--        batch with two values for each claim:
--          1, token         granted
--          0, ms            busy; the time until it is worth asking again, -1 if unknown. As text "MS PAUSE" if it waits so far
--                           behind that it need not ask for this long
--          UNFINISHED, 0    see batch.lua
--          FAILED, text     this claim failed alone

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local time, count, TOKENS = call('TIME'), (#KEYS - 1) / 2, KEYS[#KEYS]

-- Free locks without waiters, by far the most frequent case, in as few steps as possible. The clock is text, as it is stored and
-- sent: numbers that are formatted and parsed cost as much as commands. Texts of sixteen digits compare as their numbers. What is
-- not that simple is left to the rest of the script. `drawn`: the clock is the last token now. `later_token`: what the last
-- token was, if it was not older than the clock.
local granted, drawn, later_token = 0, false, nil
local moment = #time[2] == 6 and time[1] .. time[2] or time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
if #moment == 16 and #ARGV[1] == 16 and moment <= ARGV[1] then
  -- An error, such as no memory, is raised below for the items that need a token.
  local last
  if redis.REDIS_VERSION_NUM then
    last = redis.pcall('SET', TOKENS, moment, 'PX', KEPT, 'GET')
  else
    last = redis.pcall('GET', TOKENS)
    local set = type(last) ~= 'table' and redis.pcall('SET', TOKENS, moment, 'PX', KEPT)
    if set and set.err then last = set end
  end
  local failed = type(last) == 'table'
  drawn = not failed and (not last or #last == 16 and last < moment)
  later_token = not failed and not drawn and last
  if drawn and count == 1 then
    -- A claim of two words has no queue entry and may overtake waiters, so it does not ask for them.
    if (#ARGV == 4 or call('EXISTS', KEYS[2]) == 0)
      and call('SET', KEYS[1], ARGV[3] .. ' ' .. moment, 'NX', 'PX', ARGV[4]) then return moment end
  elseif drawn and string.sub(ARGV[2], 1, 1) == 'n' then
    -- One command for each lock, up to the first that is held. All get the same token, which has to rise for each name only. NX,
    -- because a name may occur twice. The lock ids come first, then the expiry, one for all or one for each.
    pcall(function()
      if call('EXISTS', unpack(KEYS, count + 1, 2 * count)) > 0 then return end
      local suffix, ms_step = ' ' .. moment, string.sub(ARGV[2], 2, 2) == 'n' and 1 or 0
      for i = 1, count do
        if not call('SET', KEYS[i], ARGV[2 + i] .. suffix, 'NX', 'PX', ARGV[count + 3 + ms_step * (i - 1)]) then return end
        granted = i
      end
    end)
    if granted == count then return moment end
  end
end

local format, match = string.format, string.match
-- include clock.lua
-- A claim that is carried out late may follow its own withdrawal: a grant would have no holder.
if now_us > tonumber(ARGV[1]) then return { now } end
-- include tokens.lua
if drawn then last_token = now_us end
if later_token then keep_token(tonumber(later_token) or 0) end
local COLUMNS = 2
-- include batch.lua
-- include lock_record.lua
-- include wait_queue.lua

for i = 1, granted do
  reply[filled + 1], reply[filled + 2] = 1, now_us
  filled = filled + 2
end

-- Registers a claim as waiter, or withdraws it if this was its only attempt. `index` as for queue_find. Returns for how long the
-- waiter sleeps.
local function wait(queue, id, ms, ttl, inbox, mode, attempt, index)
  if ttl > 0 then
    local pause = queue_put(queue, id, ms, ttl, inbox, 1, mode, attempt, index, true)
    -- The queue lives as long as its longest entry.
    if call('PTTL', queue.key) < ttl + pause then call('PEXPIRE', queue.key, text(ttl + pause)) end
    return pause
  elseif queue_remove(queue, id, index) then
    queue_first(queue)
  end
  return 0
end

return for_each(granted + 1, 2, function(i)
  local lock, queue_key, id, expiry = KEYS[i], KEYS[count + i], word(1, i), word(2, i)
  if call('EXISTS', queue_key, lock) == 0 then return 1, hold(lock, id, expiry) end

  -- The same claim again: a retry whose reply was lost, or a grant that was pushed to it.
  local holder = call('GET', lock)
  local held = token_of(holder, id)
  if held then
    -- Never shorten the lease: this attempt may be applied after a later request.
    if call('PTTL', lock) < tonumber(expiry) then call('PEXPIRE', lock, expiry) end
    return 1, held
  end

  local mode, ttl, inbox, attempt = word(3, i) or 'g', tonumber(word(4, i) or 0), word(5, i), tonumber(word(6, i) or 0)
  local ms, in_order = tonumber(expiry), string.sub(mode, 2) == 't'
  mode = string.sub(mode, 1, 1)
  local state = call('HMGET', queue_key, 'h', 'n', 'd', 'w:' .. id)
  local queue = queue_open(queue_key, state[1], state[2], state[3])
  if holder then
    -- -1 for a lock that another program set without an expiry.
    local left = call('PTTL', lock)
    return 0, busy_text(left, wait(queue, id, ms, ttl, inbox, mode, attempt, state[4]))
  end
  if queue.tail > 0 then
    local first = in_order and queue_first(queue)
    if queue.more then return UNFINISHED, 0 end
    if first and first.id ~= id then
      return 0, busy_text(first.ends - now, wait(queue, id, ms, ttl, inbox, mode, attempt, state[4]))
    end
    if queue_remove(queue, id, state[4]) then queue_first(queue) end
  end
  return 1, hold(lock, id, expiry)
end)
