-- Renews held mutexes. Never acquires anything, and never shortens a lease: a renewal may be applied after a later one.
--
-- KEYS   of each mutex: lock; then tokens (see lock_record.lua), in a Cluster only for items that were answered UNFINISHED_NOT_OURS
-- ARGV   1  a batch (see batch.lua), of each lease: 1 "LOCK-ID TOKEN", as the lock of its holder has it, 2 expiry in ms
-- Reply  1 if all were renewed; otherwise a batch with one value for each lease: 1 renewed, 0 not ours, UNFINISHED_NOT_OURS renewed,
--        but its token is higher than the stored one, and tokens is needed to store it, or the text of an error

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
-- No name contains the byte 255.
local TOKENS = string.sub(KEYS[#KEYS], -3) == '\255n:' and KEYS[#KEYS]
local count, COLUMNS = TOKENS and #KEYS - 1 or #KEYS, 1
local now = 0
-- include batch.lua

-- PEXPIRE with GT lengthens only. Redis 6 does not have it.
local gt = redis.REDIS_VERSION_NUM

-- Lengthens a lease. A key whose expiry another program removed gets one again.
local function lengthen(lock, ms)
  if gt and call('PEXPIRE', lock, ms, 'GT') == 1 then return end
  if call('PTTL', lock) < tonumber(ms) then call('PEXPIRE', lock, ms) end
end

-- All of it with their own tokens: one command reads the batch, and one more renews each lock that is ours.
local done = 0
local codes, lost = {}, false
pcall(function()
  local values = call('MGET', unpack(KEYS, 1, count))
  for i = 1, count do
    local held, value = word(1, i), values[i]
    if value == held then
      lengthen(KEYS[i], word(2, i))
      codes[i] = 1
    elseif value and string.find(value, match(held, '^.* '), 1, true) == 1 then
      return
    else
      codes[i], lost = 0, true
    end
    done = i
  end
end)
if done == count and not lost then return 1 end
for i = 1, done do reply[i + 1] = codes[i] end
filled = done + 1

-- Another token: a quorum writes back the highest one of its nodes.
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
now = math.floor(now_us / 1000)
-- include tokens.lua
-- include lock_record.lua

return for_each(done + 1, 1, function(i)
  local lock, ms, id, token = KEYS[i], word(2, i), match(word(1, i), '^(.*) (%d+)$')
  token = tonumber(token)
  local known = token_of(call('GET', lock), id)
  if not known then return 0 end
  -- PEXPIRE comes first: a server that is out of memory allows it, and then allows the rest of the script.
  lengthen(lock, ms)
  if token > known then
    -- No token is granted below it any more.
    if not TOKENS then return UNFINISHED_NOT_OURS end
    if token > draw_token() then keep_token(token) end
    call('SET', lock, id .. ' ' .. text(token), 'PX', text(call('PTTL', lock)))
  end
  return 1
end)
