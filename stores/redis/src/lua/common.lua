-- What every script begins with: the server's clock and the rules that both records share.
--
-- The clock is always the server's. Since Redis 5 a script replicates its effects, so reading TIME before a write
-- is allowed and a replica gets what was decided here, not another decision.
--
-- ARGV of every script:
--   1  what the channel of an inbox begins with
--   2  for how long the token of an unused name is kept, ms
--   3  for how long a grant that nobody asked for just now lasts, ms
--   4  '1' if PUBLISH counts every subscriber there is (one server; on a Cluster it counts those of this node)
--   5  after this moment of the server's clock an acquisition is refused, ms; 0 if it never is
-- From the sixth on: the items.

local CHANNEL, RETENTION, WINDOW, COUNTS = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local ITEMS = 6
local FAILED = 9

local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The rule of every lease store: one more than the last token, or the clock if that is higher.
local function token_after(last)
  local token = tonumber(last) or 0
  if token >= now then return token + 1 end
  return now
end

-- Keeps a key as long as it is of use (`left` ms) and for the retention time after that; longer if its token ran
-- ahead of the clock, since then the clock alone would not give a higher one.
local function keep(key, left, token)
  local ahead = math.max(0, (tonumber(token) or 0) - now)
  call('PEXPIRE', key, left + RETENTION + ahead)
end

-- Sends a message to one process; false if it is surely not there to read it.
local function tell(inbox, message)
  local readers = call('PUBLISH', CHANNEL .. inbox, message)
  return readers > 0 or not COUNTS
end

-- "-" stands for no inbox: an inbox is never empty and has no spaces.
local function written(inbox) return inbox == '' and '-' or inbox end

-- Runs a step for each item. One bad item, such as a key of another type, fails alone.
local function answer(reply, ok, code, value)
  if not ok then
    value = type(code) == 'table' and code.err or tostring(code)
    code = FAILED
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = value
end
