
-- One lock that is ours, with our token beside it, which is not so old that its life may have to be extended as well. The
-- answer is the clock as text: a list would take the server as long as another call.
if #KEYS == 2 and #ARGV == 5 then
  local id, ms, token = ARGV[3], ARGV[4], ARGV[5]
  if call('GET', KEYS[1]) == id then
    local words, time = call('GET', KEYS[2]), call('TIME')
    local moment = time[1] .. string.sub('00000' .. time[2], -6, -4)
    now = tonumber(moment)
    if words and string.find(words, token .. ' ', 1, true) == 1 and token + RETENTION / 2 >= now then
      call('PEXPIRE', KEYS[1], ms)
      return moment
    end
  end
end
