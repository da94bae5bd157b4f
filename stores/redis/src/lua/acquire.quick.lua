
-- Many locks that are free, and nobody waits for any of them: up to the first that is held. NX, and not a look beforehand,
-- since one name may be there twice. With GET, which Redis 6 does not know beside NX, the server answers with what was
-- there before: that is the last token, and takes less than the table that stands for OK.
if count then
  local modern, tokens, taken, done = redis.REDIS_VERSION_NUM, nil, 0, 0
  pcall(function()
    if call('EXISTS', unpack(KEYS, 2 * count + 1)) > 0 then return end
    local byte, sub, behind = string.byte, string.sub, #moment + 1
    -- Whether the last token is not lower than the clock. Its text tells, if it has as many digits.
    local function ahead(words) return words and (words >= moment or byte(words, behind) ~= 32) end
    -- Names that were all used within the last millisecond would be written twice: then all are looked at beforehand. The
    -- first one stands for all.
    local last = (not modern or ahead(call('GET', KEYS[count + 1]))) and call('MGET', unpack(KEYS, count + 1, 2 * count))
    local id_at, id_step, ms_at, ms_step = base[2], step[2], base[3], step[3]
    local head, ms, life = moment .. ' 0 ', nil, nil
    for i = 1, count do
      local key, side, id = KEYS[i], KEYS[count + i], ARGV[id_at + id_step * i]
      local wish = ARGV[ms_at + ms_step * i]
      if wish ~= ms then ms, life = wish, kept(wish, now) end
      if modern then
        if call('SET', key, id, 'NX', 'PX', ms, 'GET') then return end
      elseif not call('SET', key, id, 'NX', 'PX', ms) then
        return
      end
      taken = i
      local before
      if last then
        before = last[i]
      else
        before = call('SET', side, head .. sub(id, -MARK), 'PX', life, 'GET')
      end
      if ahead(before) then
        tokens = tokens or {}
        tokens[i] = lock_side(side, id, before, ms)
      elseif last then
        call('SET', side, head .. sub(id, -MARK), 'PX', life)
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
