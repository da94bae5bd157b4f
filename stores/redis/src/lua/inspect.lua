-- Looks, and with '1' takes away. Each item: mode (l or p), '1' to take it from its holders. Keys as in release.
-- Answers for each: capacity, {id, token or -1, acquired at or -1, time left or -1, weight, …}, {id, weight, …}

local slow = contended()

local function waiting_in(hash)
  local found = {}
  for i = 1, #hash, 2 do
    local number = match(hash[i], '^q:(%d+)$')
    if number then
      local entry = slow.queue_read(hash[i + 1], tonumber(number))
      if entry.ends > now then found[#found + 1] = entry end
    end
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  local flat = {}
  for _, entry in ipairs(found) do
    flat[#flat + 1] = entry.id
    flat[#flat + 1] = entry.weight
  end
  return flat
end

local function lock_look(key, side, line, take)
  local holders = {}
  local id = call('GET', key)
  local waiters = waiting_in(call('HGETALL', line))
  if id then
    local token, at = -1, -1
    local last, since, owner = match(call('GET', side) or '', '^(%d+) (%d+) %S+ (.*)$')
    if owner == id then token, at = tonumber(last), tonumber(since) end
    holders = { id, token, at, call('PTTL', key), 1 }
    if take then
      call('DEL', key)
      slow.lock_pass_on(key, side, slow.line_of(line), true)
    end
  end
  return { 1, holders, waiters }
end

local function pool_look(key, take)
  local pool = slow.pool_open(key)
  local holders = {}
  for _, holder in ipairs(slow.holders_of(pool)) do
    if holder.ends > now then
      local shown = { holder.id, holder.token, holder.at, holder.ends - now, holder.weight }
      for _, value in ipairs(shown) do holders[#holders + 1] = value end
    end
  end
  local waiters = waiting_in(call('HGETALL', key))
  local capacity = pool.capacity
  if take then
    for _, holder in ipairs(slow.holders_of(pool)) do call('HDEL', key, 'o:' .. holder.id) end
    pool.used = 0
    slow.pool_grant(pool, nil)
    slow.queue_first(pool.queue)
    slow.pool_close(pool)
  end
  return { capacity, holders, waiters }
end

return each(function()
  local mode, take, key, side, line = ARGV[a], ARGV[a + 1] == '1', KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local lock = mode == 'l'
  k, a = k + (lock and 3 or 1), a + 2
  local found = lock and lock_look(key, side, line, take) or pool_look(key, take)
  n = n + 1
  reply[n] = found
end, 1)
