
-- Hands a free lock to the first waiter: grants it and pushes the grant, or wakes a waiter that must ask by itself. Returns
-- the inbox that was notified, or nil. `was_held`: the lock was held until now.
--
-- The lock is written before the message is published: a message about a grant that is then refused (out of memory) would
-- make a second holder.
local function hand_off(lock, queue, was_held)
  local unclaimed = false
  while true do
    local first = queue_first(queue)
    if not first then break end
    -- It was woken and never asked. It is not woken again unless the lock was held in between.
    if first.mode == 'rw' and not was_held then break end
    if not queue_spend(queue, GRANT_COST) then break end
    if first.mode == 'rw' then
      queue_delete(queue, first)
    elseif first.mode == 'g' then
      queue_take(queue, first)
      local window = math.min(first.ms, GRANT_WINDOW)
      local token = hold(lock, first.id, text(window))
      if notify(first.inbox, grant_message(first.seen, first.id, token, first.attempt, window)) then
        queue_first(queue)
        return first.inbox
      end
      unclaimed = true
    else
      if unclaimed then
        call('DEL', lock)
        unclaimed = false
      end
      first.mode = 'rw'
      local raw = format('%d %d %d %d rw %s %s', first.ends, first.seen, first.ms, first.weight, first.inbox, first.id)
      call('HSET', queue.key, 'q:' .. text(first.number), raw)
      if notify(first.inbox, 'R ' .. first.id) then return first.inbox end
      queue_delete(queue, first)
    end
  end
  if unclaimed then call('DEL', lock) end
  return nil
end
