
-- The last token, once this call has drawn one.
local last_token = nil

-- Stores a token as the last one. It is kept for the retention, and longer if it is ahead of the clock, because then the clock
-- alone would not produce a higher one.
local function keep_token(token)
  last_token = token
  local ahead = token > now_us and math.ceil((token - now_us) / 1000) or 0
  call('SET', TOKENS, format('%d', token), 'PX', format('%d', RETENTION + ahead))
end

-- Draws the next token. It is the clock, unless the clock was set back, or stands still because a script sees one moment. From
-- Redis 7 on, one command writes the clock and returns the last token.
local function draw_token()
  local last = last_token
  if not last and redis.REDIS_VERSION_NUM then
    last = tonumber(call('SET', TOKENS, format('%d', now_us), 'PX', KEPT, 'GET') or 0) or 0
    if last < now_us then
      last_token = now_us
      return now_us
    end
  elseif not last then
    last = tonumber(call('GET', TOKENS) or 0) or 0
  end
  keep_token(last < now_us and now_us or last + 1)
  return last_token
end
