-- The lock record when more than one want it. See the verbs for the case in which nobody else does.

local function line_of(line)
  local state = call('HMGET', line, 'h', 'n', 'd')
  return queue_open(line, state[1], state[2], state[3])
end

-- The line lasts as long as anybody in it does.
local function line_keep(line, ttl)
  local left = call('PTTL', line)
  if left < ttl then call('PEXPIRE', line, text(ttl)) end
end

-- Remembers that a claim waits, or forgets it if this was its only attempt.
local function lock_wait(queue, id, ms, ttl, inbox, mode, attempt)
  if ttl > 0 then
    queue_put(queue, id, ms, ttl, inbox, 1, mode, attempt)
    line_keep(queue.key, ttl)
  elseif queue_remove(queue, id) then
    queue_first(queue)
  end
end

-- Granted: 1, token. Busy: 0, time until it is worth asking again (-1: unknown). UNFINISHED: see there.
local function lock_acquire(key, side, line, id, ms, ttl, inbox, attempt, mode, in_turn)
  local holder = call('GET', key)
  if holder == id then
    local last, left = call('GET', side), call('PTTL', key)
    local token = last and tonumber(match(last, '^%d+'))
    -- Never sooner than it already ends: what is applied late must not shorten it.
    if left < tonumber(ms) then
      call('PEXPIRE', key, ms)
      left = ms
    end
    if not token then return 1, lock_side(side, id, nil, left) end
    call('PEXPIRE', side, kept(left, token))
    return 1, token
  end
  local queue = line_of(line)
  ms, ttl, attempt = tonumber(ms), tonumber(ttl), tonumber(attempt)
  if holder then
    -- A lock that another program set without an expiry has a PTTL of -1.
    local left = call('PTTL', key)
    lock_wait(queue, id, ms, ttl, inbox, mode, attempt)
    return 0, left
  end
  if queue.tail > 0 then
    local first = in_turn and queue_first(queue)
    if queue.more then return UNFINISHED, 0 end
    if first and first.id ~= id then
      lock_wait(queue, id, ms, ttl, inbox, mode, attempt)
      return 0, first.ends - now
    end
    if queue_remove(queue, id) then queue_first(queue) end
  end
  return 1, lock_hold(key, side, id, call('GET', side), ms)
end

-- Grants a free lock to the first waiter, or tells it to ask. Returns the inbox that was told.
--
-- The plain key is written before the message goes out: a message about a grant that was then refused (no memory)
-- would be a second holder.
local function lock_pass_on(key, side, queue, was_held)
  local unclaimed = false
  while true do
    local first = queue_first(queue)
    if not first then break end
    -- Told before and never came. It is not told again as long as the lock was not held in between.
    if first.mode == 'rw' and not was_held then break end
    if not queue_spend(queue, GRANT) then break end
    if first.mode == 'rw' then
      queue_drop(queue, first)
    elseif first.mode == 'g' then
      queue_take(queue, first)
      local window = math.min(first.ms, WINDOW)
      local token = lock_hold(key, side, first.id, call('GET', side), text(window))
      if tell(first.inbox, grant_message(first, token, window)) then
        queue_first(queue)
        return first.inbox
      end
      unclaimed = true
    else
      if unclaimed then
        call('DEL', key)
        unclaimed = false
      end
      first.mode = 'rw'
      local raw = format('%d %d %d %d rw %s %s', first.ends, first.seen, first.ms, first.weight, first.inbox, first.id)
      call('HSET', queue.key, 'q:' .. text(first.number), raw)
      if tell(first.inbox, 'R ' .. first.id) then return first.inbox end
      queue_drop(queue, first)
    end
  end
  if unclaimed then call('DEL', key) end
  return nil
end

-- The inbox of the process that made a lock id: the front of it. Nil if no engine made it. A quorum may have put a
-- generation behind it.
local function inbox_of(id) return match(id, '^(.*#%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)%-%x+~?%d*$') end

-- What follows the release of a lock that others may wait for. `held`: it was ours, and the plain key is gone. Returns
-- what `release.lua` tells.
local function lock_released(key, side, line, id, held, holder)
  local queue = line_of(line)
  local waited = queue_remove(queue, id)
  local told = nil
  if held or not holder then
    told = lock_pass_on(key, side, queue, held or (waited and waited.mode == 'rw'))
    if queue.more and not told then return (held or waited) and UNFINISHED or UNFINISHED_NOT_OURS end
  elseif waited then
    queue_first(queue)
  end
  if not held and not waited then return 0 end
  return (told and told ~= inbox_of(id)) and 2 or 1
end
