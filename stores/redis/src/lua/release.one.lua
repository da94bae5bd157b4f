
-- One lock that nobody waits for. The code alone is the answer: a list would take as long as another call.
if #KEYS == 3 and #ARGV == 3 then
  local held = call('GET', KEYS[1]) == ARGV[3]
  if call('EXISTS', KEYS[3]) == 0 then
    if held then call('DEL', KEYS[1]) end
    return held and 1 or 0
  end
end
