-- What other processes are told, on the channels of their inboxes.

-- The message that pushes a grant. `after` counts from the decision on the attempt that the message repeats, which was at `seen`.
-- It is a lower bound, because the clock is read in whole milliseconds.
local function grant_message(seen, id, token, attempt, window)
  return format('P %d %d %d %s %s', token, math.max(0, now - seen - 1), window, attempt, id)
end

-- Publishes to the inbox of one process. False if no process can have received the message.
local function notify(inbox, message)
  local receivers = call('PUBLISH', CHANNEL .. inbox, message)
  return receivers > 0 or not COUNTS
end

-- The inbox of the process that made a lock id, which is the front of the id; nil if no engine made it. A quorum may have
-- appended a generation.
local function inbox_of(id) return match(id, '^(.*#%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)%-%x+~?%d*$') end
