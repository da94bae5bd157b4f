
-- Everything that is needed only when more than one want a lock, and for pools.
local function contended()
