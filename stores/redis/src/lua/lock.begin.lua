
-- What is needed only when more than one want a lock; and what is needed for pools.
local function contended(lock)
if lock then
