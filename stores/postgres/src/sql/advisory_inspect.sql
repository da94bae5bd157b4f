-- Who holds advisory locks and who waits for them. A row counts if the session that wrote it is there (it has the lock
-- that stands for it) and has, or waits for, the lock that the row is about. $1 and $2: only this key.
WITH advisory AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, l.objsubid = 2 AS pair, (l.classid::bigint << 32) | l.objid::bigint AS key
    FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid IN (1, 2)
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
), ours AS MATERIALIZED (
    SELECT s.*, a.pid, a.granted
    FROM {session} s
    JOIN advisory home ON home.key = s.session AND NOT home.pair AND home.granted AND home.mode = 'ExclusiveLock'
    JOIN advisory a ON a.key = s.key AND a.pair = s.pair AND a.pid = home.pid AND a.granted = (s.token IS NOT NULL)
)
SELECT o.key, o.pair, o.kind, o.name, o.lock_id, o.weight, o.capacity, o.token, o.since, o.granted, o.pid
FROM ours o
WHERE $1::bigint IS NULL OR o.key = $1 AND o.pair = $2
UNION ALL
-- Others, who use the same key without this library.
SELECT a.key, a.pair, NULL, NULL, 'pid:' || a.pid::text || coalesce(':' || nullif(b.application_name, ''), ''),
       CASE WHEN a.mode = 'ShareLock' THEN 0 ELSE 1 END, NULL, NULL, NULL, a.granted, a.pid
FROM advisory a LEFT JOIN pg_catalog.pg_stat_activity b ON b.pid = a.pid
WHERE a.key = $1 AND a.pair = $2
  AND NOT EXISTS (SELECT FROM ours o WHERE o.pid = a.pid AND o.key = a.key AND o.pair = a.pair)
ORDER BY since NULLS FIRST, lock_id
