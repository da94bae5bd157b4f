-- What every script begins with: the server's clock and the rules that both records share.
--
-- The clock is always the server's. Since Redis 5 a script replicates its effects, so reading TIME before a write
-- is allowed and a replica gets what was decided here, not another decision.
--
-- What is the same for all calls of a store is written in front of the script, as numbers and text of its own: what comes
-- with every call has to be read, and made into a Lua value, with every call.
--   CHANNEL    what the channel of an inbox begins with
--   RETENTION  for how long the token of an unused name is kept, ms
--   WINDOW     for how long a grant that nobody asked for just now lasts, ms
--   COUNTS     whether PUBLISH counts every subscriber there is (one server; on a Cluster it counts those of this node)
--   SHORT      the longest expiry of a lock whose token is kept for LIFE, at least as long as it must be
--   MARK       how many bytes at the end of a lock id tell it from others
--
-- ARGV of every script:
--   1  after this moment of the server's clock an acquisition is refused, ms; 0 if it never is
-- From the second on: the items one after the other, as the last file of each script tells, or many locks by columns,
-- see `columns.lua`.
--
-- Every script holds up all clients of the server, and locks that nobody else wants are by far the most frequent case.
-- So one such lock comes first, in `VERB.one.lua`: as few calls as it takes, and nothing is made that it does not need.
-- Then many of them, in `VERB.quick.lua`: one call for all where the server has a command that takes many keys, and one
-- word as the answer if all went well. What is left goes item by item through the verb itself, and what more than one
-- want through the one function `contended`, which is run when it is first needed. Numbers are handed over as text: the
-- server writes a Lua number with "%.17g", which takes longer than the command.

local call, format, match, KEYS, ARGV = redis.call, string.format, string.match, KEYS, ARGV
local now = nil
