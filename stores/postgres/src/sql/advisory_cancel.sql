-- Ends the statement that a session is in; the lock that only this session has tells its process. When this is answered
-- the signal has been given: it can hit what the session is in, but nothing that is sent to it afterwards. A request to
-- cancel over a connection of its own gives no such answer, and may arrive whenever it likes. No row: there is no such
-- session here.
SELECT pg_catalog.pg_cancel_backend(l.pid) AS told
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
