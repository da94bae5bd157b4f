
-- Many locks that are free, and nobody waits for any of them: up to the first that is held. NX, and not a look beforehand,
-- since one name may be there twice. With GET, which Redis 6 does not know beside NX, the server answers with what was
-- there before: that is the last token, and takes less than the table that stands for OK.
if count then
  local modern, tokens, taken, done = redis.REDIS_VERSION_NUM, nil, 0, 0
  pcall(function()
    if call('EXISTS', unpack(KEYS, 2 * count + 1)) > 0 then return end
    local id_at, id_step, ms_at, ms_step, inbox_at, inbox_step = base[2], step[2], base[3], step[3], base[5], step[5]
    local last = not modern and call('MGET', unpack(KEYS, count + 1, 2 * count))
    local byte, behind, inbox, head, ms, life = string.byte, #moment + 1, nil, nil, nil, nil
    for i = 1, count do
      local key, side, id = KEYS[i], KEYS[count + i], ARGV[id_at + id_step * i]
      local mine, wish = '-', ARGV[ms_at + ms_step * i]
      if inbox_at then mine = ARGV[inbox_at + inbox_step * i] end
      if mine ~= inbox then inbox, head = mine, moment .. ' ' .. moment .. ' ' .. mine .. ' ' end
      if wish ~= ms then ms, life = wish, kept(wish, now) end
      local before
      if modern then
        if call('SET', key, id, 'NX', 'PX', ms, 'GET') then return end
        taken = i
        before = call('SET', side, head .. id, 'PX', life, 'GET')
      else
        if not call('SET', key, id, 'NX', 'PX', ms) then return end
        taken = i
        before = last[i]
        call('SET', side, head .. id, 'PX', life)
      end
      -- The last token is lower than the clock if its text is, as long as it has as many digits.
      if before and (before >= moment or byte(before, behind) ~= 32) then
        tokens = tokens or {}
        tokens[i] = lock_side(side, id, inbox, before, ms)
      end
      done = i
    end
  end)
  if done == count and not tokens then return moment end
  -- An error leaves its lock to the slow way as it was, and there it shows.
  if taken > done then call('DEL', KEYS[taken]) end
  for i = 1, done do
    reply[n + 1], reply[n + 2] = 1, tokens and tokens[i] or now
    n = n + 2
  end
  rows(done + 1)
end
