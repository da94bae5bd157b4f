-- Renews holders of pools. Never acquires anything for them, and never shortens a lease: a renewal may be applied after a later
-- one. Weight that expired meanwhile goes to the first waiters.
--
-- KEYS   of each pool: its record (see pool_record.lua)
-- ARGV   1  grant window in ms: how long a pushed grant lasts until its waiter renews it
--        2  a batch (see batch.lua), of each lease: 1 lock id, 2 expiry in ms, 3 token
-- Reply  a batch with one value for each lease: 1 renewed, 0 not ours, or the text of an error

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local count, COLUMNS, GRANT_WINDOW = #KEYS, 2, tonumber(ARGV[1])
local time = call('TIME')
-- include clock.lua
-- include batch.lua
-- include messages.lua
-- include wait_queue.lua
-- include pool_record.lua

return for_each(1, 1, function(i)
  local key, id, ms, token = KEYS[i], word(1, i), tonumber(word(2, i)), tonumber(word(3, i))
  local pool = pool_open(key)
  -- PEXPIRE comes first: a server that is out of memory allows it, and then allows the rest of the script.
  if call('PEXPIRE', key, pool_ttl(math.max(ms, pool.latest - now), pool.token)) == 0 then return 0 end
  delete_expired(pool)
  local holder = holder_find(pool, id)
  if holder then
    holder.ends = math.max(holder.ends, now + ms)
    -- A quorum writes back the highest token of its nodes.
    holder.token = math.max(holder.token, token)
    pool.token = math.max(pool.token, token)
  end
  grant_waiters(pool, nil)
  pool_close(pool, holder)
  return holder and 1 or 0
end)
