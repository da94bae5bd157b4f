-- Of the next rows, the semaphores that have permits or queue entries of sessions that ended.
WITH alive AS MATERIALIZED (
    SELECT 'dl_' || pg_catalog.lpad(pg_catalog.to_hex(l.classid::bigint), 8, '0')
                 || pg_catalog.lpad(pg_catalog.to_hex(l.objid::bigint), 8, '0') AS inbox
    FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
), page AS MATERIALIZED (
    SELECT p.key, p.holders || p.queue AS entries
    FROM {session_pool} p
    WHERE p.key > $1
    ORDER BY p.key
    LIMIT $2
)
SELECT p.key
FROM page p
WHERE EXISTS (
    SELECT FROM pg_catalog.jsonb_array_elements(p.entries) AS e (entry)
    WHERE e.entry ->> 'inbox'::text NOT IN (SELECT a.inbox FROM alive a))
