-- The inboxes of the sessions that are alive: each session holds one exclusive advisory lock, and its inbox is named after it.
SELECT 'dl_' || pg_catalog.lpad(pg_catalog.to_hex(l.classid::bigint), 8, '0')
             || pg_catalog.lpad(pg_catalog.to_hex(l.objid::bigint), 8, '0') AS inbox
FROM pg_catalog.pg_locks l
WHERE {sessions} AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.database = {this_database}
