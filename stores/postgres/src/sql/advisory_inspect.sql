-- Holders of advisory locks and their waiters. A row counts if the session that wrote it is alive (it holds its own session
-- lock) and holds or waits for the lock that the row is about. $1 and $2: only this key.
WITH advisory AS MATERIALIZED (
    {advisory_locks}
), ours AS MATERIALIZED (
    SELECT s.*, a.pid, a.granted
    FROM {session} s
    JOIN advisory own ON own.key = s.session AND NOT own.pair AND own.granted AND own.mode = 'ExclusiveLock'
    JOIN advisory a ON a.key = s.key AND a.pair = s.pair AND a.pid = own.pid AND a.granted = (s.token IS NOT NULL)
)
SELECT o.key, o.pair, o.kind, o.name, o.lock_id, o.weight, o.capacity, o.token, o.since, o.granted, o.pid, o.session
FROM ours o
WHERE $1::bigint IS NULL OR o.key = $1 AND o.pair = $2
UNION ALL
-- Programs that use the same key without this library.
SELECT a.key, a.pair, NULL, NULL, 'pid:' || a.pid::text || coalesce(':' || nullif(b.application_name, ''), ''),
       CASE WHEN a.mode = 'ShareLock' THEN 0 ELSE 1 END, NULL, NULL, NULL, a.granted, a.pid, NULL
FROM advisory a LEFT JOIN pg_catalog.pg_stat_activity b ON b.pid = a.pid
WHERE a.key = $1 AND a.pair = $2
  AND NOT EXISTS (SELECT FROM ours o WHERE o.pid = a.pid AND o.key = a.key AND o.pair = a.pair)
ORDER BY since NULLS FIRST, lock_id
