-- Cancels the statement that a session is executing. The process is that of the session which holds the advisory lock $1.
-- Once this is answered the signal has been sent: it can hit the statement in flight, but none that is sent afterwards. The
-- driver's cancel request goes over a connection of its own, has no such answer and may arrive at any later time.
-- No row: there is no such session on this server.
SELECT pg_catalog.pg_cancel_backend(l.pid) AS signalled
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
  AND l.database = {this_database}
