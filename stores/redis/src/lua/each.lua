
-- Writes a holder.
local function lock_hold(key, side, id, last, ms)
  local token = lock_side(side, id, last, ms)
  call('SET', key, id, 'PX', ms)
  return token
end

-- Does a step for each item that is left. One that raises an error, such as a key of another type, fails alone: its
-- text stands in the place of its answer, of which `width` is the number of values.
local function each(step, width)
  while true do
    local done, failure = pcall(function()
      while ARGV[a] do step() end
    end)
    if done then
      reply[1] = now or 0
      return reply
    end
    if type(failure) == 'table' then failure = failure.err end
    if width == 2 then
      n = n + 1
      reply[n] = FAILED
    end
    n = n + 1
    reply[n] = tostring(failure)
  end
end
