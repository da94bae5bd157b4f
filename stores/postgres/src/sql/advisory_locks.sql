-- The advisory locks of this database. A pair of 32-bit keys is shown as one number.
SELECT l.pid, l.granted, l.mode, l.objsubid = 2 AS pair, (l.classid::bigint << 32) | l.objid::bigint AS key
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.objsubid IN (1, 2) AND l.database = {this_database}
