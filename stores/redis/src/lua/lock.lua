-- The lock record: one holder. The plain key holds nothing but the lock id and its expiry, so that every program
-- that knows SET NX PX and compare-and-delete shares it with us. Beside it, in the same hash slot, a hash:
--   t  the last token, kept after the release so that the count goes on
--   o  of our holder: "acquired-at inbox lock-id"; stale if the plain key says otherwise
-- and the queue of those who wait.

local function lock_hold(key, side, id, inbox, last, ms)
  local token = token_after(last)
  call('HSET', side, 't', token, 'o', format('%.0f %s %s', now, written(inbox), id))
  call('SET', key, id, 'PX', ms)
  keep(side, ms, token)
  return token
end

-- Remembers that a claim waits, or forgets it if this was its only attempt.
local function lock_wait(side, queue, token, left, id, ms, ttl, inbox, mode)
  if ttl > 0 then
    queue_put(queue, id, ms, ttl, inbox, 1, mode)
    keep(side, math.max(left, ttl), token)
  else
    queue_remove(queue, id)
  end
end

-- Granted: 1, token. Busy: 0, time until it is worth asking again (-1: nobody knows).
local function lock_acquire(key, side, id, ms, ttl, inbox, mode, in_turn)
  local holder = call('GET', key)
  local state = call('HMGET', side, 't', 'h', 'n')
  if holder == id then
    local token = tonumber(state[1])
    if not token then return 1, lock_hold(key, side, id, inbox, nil, ms) end
    call('PEXPIRE', key, ms)
    keep(side, ms, token)
    return 1, token
  end
  local queue = queue_open(side, state[2], state[3])
  if holder then
    -- A lock that another program set without an expiry has a PTTL of -1.
    local left = call('PTTL', key)
    lock_wait(side, queue, state[1], left, id, ms, ttl, inbox, mode)
    return 0, left
  end
  if queue.tail > 0 then
    local first = in_turn and queue_first(queue)
    if first and first.id ~= id then
      lock_wait(side, queue, state[1], first.ends - now, id, ms, ttl, inbox, mode)
      return 0, first.ends - now
    end
    queue_remove(queue, id)
  end
  return 1, lock_hold(key, side, id, inbox, state[1], ms)
end

-- Gives a free lock to the first who waits, or tells them to ask. Returns the inbox that was told.
--
-- The plain key is written before the message goes out: a message about a grant that was then refused (no memory)
-- would be a second holder.
local function lock_pass_on(key, side, queue, last, was_held)
  local unclaimed = false
  while true do
    local first = queue_first(queue)
    if not first then break end
    if first.mode == 'g' then
      queue_drop(queue, first)
      local window = math.min(first.ms, WINDOW)
      last = lock_hold(key, side, first.id, first.inbox, last, window)
      if tell(first.inbox, grant_message(first, last, window)) then return first.inbox end
      unclaimed = true
    elseif first.mode == 'rw' then
      -- Told before and never came. It is not told again as long as the lock was not held in between.
      if not was_held then break end
      queue_drop(queue, first)
    else
      if unclaimed then
        call('DEL', key)
        unclaimed = false
      end
      first.mode = 'rw'
      queue_write(queue, first)
      if tell(first.inbox, 'R ' .. first.id) then return first.inbox end
      queue_drop(queue, first)
    end
  end
  if unclaimed then
    call('DEL', key)
    call('HDEL', side, 'o')
  end
  return nil
end

-- 1 if it is ours and now lasts for the whole expiry, 0 otherwise. Never takes anything. PEXPIRE comes first: it is
-- allowed on a server that is out of memory, and after it so is the rest.
local function lock_renew(key, side, id, ms, token)
  if call('GET', key) ~= id then return 0, 0 end
  call('PEXPIRE', key, ms)
  local last = tonumber(call('HGET', side, 't')) or 0
  if token > last then
    call('HSET', side, 't', token)
    last = token
  end
  keep(side, ms, last)
  return 1, 0
end

-- 0: nothing was ours. 1: given back. 2: given back, and another process was told.
local function lock_release(key, side, id)
  local holder = call('GET', key)
  local state = call('HMGET', side, 't', 'h', 'n', 'o')
  local queue = queue_open(side, state[2], state[3])
  local own = nil
  local held = holder == id
  if held then
    call('DEL', key)
    if state[4] then
      own = match(state[4], '^%d+ (%S+)')
      call('HDEL', side, 'o')
    end
  end
  if queue.tail == 0 then return held and 1 or 0, 0 end
  local waited = queue_remove(queue, id)
  local told = nil
  if held or not holder then
    told = lock_pass_on(key, side, queue, state[1], held or (waited and waited.mode == 'rw'))
  end
  if not held and not waited then return 0, 0 end
  return (told and told ~= own) and 2 or 1, 0
end
