-- The server's clock in ms. A script sees one moment, however long it runs. Since Redis 5 a script replicates its effects, so
-- it may read TIME before it writes.
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
