-- The server's clock in ms, and in µs. `time` is the reply to TIME. A script sees one moment, however long it runs. Since Redis 5 a
-- script replicates its effects, so it may read TIME before it writes.
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
