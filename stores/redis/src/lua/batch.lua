
-- How a batch is passed and answered.
--
-- KEYS   the first key of every item, then the second key of every item, and so on
-- ARGV   at COLUMNS one letter for each word of an item: `1` if all items share the word, `n` if each has its own; then the
--        words, column by column
-- Reply  {clock, then the values of each item in order}
--
-- A word that no item needs is left out, so it reads as nil.

-- Reply codes of an item that failed alone, and of one that the caller must send again at once because this call reached its
-- limit of work for absent waiters. UNFINISHED_NOT_OURS is for releases only: nothing was held or queued under the lock id.
local FAILED, UNFINISHED, UNFINISHED_NOT_OURS = 9, 5, 6

-- Word C of item I is ARGV[base[C] + step[C] * I].
local base, step, at = {}, {}, COLUMNS + 1
for c = 1, #ARGV[COLUMNS] do
  local own = string.sub(ARGV[COLUMNS], c, c) == 'n'
  base[c], step[c] = own and at - 1 or at, own and 1 or 0
  at = at + (own and count or 1)
end

local function word(c, i) return base[c] and ARGV[base[c] + step[c] * i] end

-- Numbers are passed to commands as text: the server formats a Lua number with "%.17g", which costs more than the command.
local function text(number) return format('%d', number) end

-- The reply, and the number of values in it so far.
local reply, filled = { 0 }, 1

-- Runs `verb` for the items from `first` on and appends the `width` values that it returns. An item that raises an error,
-- such as a key of another type, fails alone: its reply is the text of the error.
local function for_each(first, width, verb)
  local i = first
  while i <= count do
    local ok, failure = pcall(function()
      while i <= count do
        i = i + 1
        local one, two = verb(i - 1)
        reply[filled + 1] = one
        if width == 2 then reply[filled + 2] = two end
        filled = filled + width
      end
    end)
    if not ok then
      if type(failure) == 'table' then failure = failure.err end
      if width == 2 then reply[filled + 1] = FAILED end
      filled = filled + width
      reply[filled] = tostring(failure)
    end
  end
  reply[1] = now
  return reply
end
