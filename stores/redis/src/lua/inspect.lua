-- Looks, and with break takes away. Each item: mode (l or p), '1' to take it from its holders.
-- Answers for each: capacity, {id, token or -1, acquired at or -1, time left or -1, weight, …}, {id, weight, …}

local function waiting_in(hash)
  local found = {}
  for i = 1, #hash, 2 do
    local number = match(hash[i], '^q:(%d+)$')
    if number then
      local entry = queue_read(hash[i + 1], tonumber(number))
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

local function lock_look(key, side, take)
  local holders = {}
  local id = call('GET', key)
  local hash = call('HGETALL', side)
  if id then
    local token, at = -1, -1
    local state = call('HMGET', side, 't', 'o')
    local since, owner = match(state[2] or '', '^(%d+) %S+ (.*)$')
    if owner == id then token, at = tonumber(state[1]), tonumber(since) end
    holders = { id, token, at, call('PTTL', key), 1 }
  end
  local waiters = waiting_in(hash)
  if take and id then
    call('DEL', key)
    call('HDEL', side, 'o')
    local state = call('HMGET', side, 't', 'h', 'n')
    lock_pass_on(key, side, queue_open(side, state[2], state[3]), state[1], true)
  end
  return { 1, holders, waiters }
end

local function pool_look(key, take)
  local pool = pool_open(key)
  local holders = {}
  for _, holder in ipairs(holders_of(pool)) do
    if holder.ends > now then
      local shown = { holder.id, holder.token, holder.at, holder.ends - now, holder.weight }
      for _, value in ipairs(shown) do holders[#holders + 1] = value end
    end
  end
  local waiters = waiting_in(call('HGETALL', key))
  local capacity = pool.capacity
  if take then
    for _, holder in ipairs(holders_of(pool)) do call('HDEL', key, 'o:' .. holder.id) end
    pool.used = 0
    pool_grant(pool, nil)
    queue_first(pool.queue)
    pool_close(pool)
  end
  return { capacity, holders, waiters }
end

local reply, k, a = { now }, 1, ITEMS
while ARGV[a] do
  local take = ARGV[a + 1] == '1'
  local ok, found
  if ARGV[a] == 'l' then
    ok, found = pcall(lock_look, KEYS[k], KEYS[k + 1], take)
    k = k + 2
  else
    ok, found = pcall(pool_look, KEYS[k], take)
    k = k + 1
  end
  if ok then
    reply[#reply + 1] = found
  else
    reply[#reply + 1] = type(found) == 'table' and found.err or tostring(found)
  end
  a = a + 2
end
return reply
