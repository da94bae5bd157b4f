-- Looks at the next rows of the pool table and deletes those that were of no use for the whole retention time; see the
-- sweep of the lease table.
WITH page AS MATERIALIZED (
    SELECT p.key
    FROM {pool} p
    WHERE p.key > $1
    ORDER BY p.key
    LIMIT $2
), turn AS MATERIALIZED (
    SELECT pg_catalog.pg_try_advisory_xact_lock(7235441220220052332) AS ours
), spent AS MATERIALIZED (
    SELECT l.key
    FROM {pool} l JOIN page p ON p.key = l.key CROSS JOIN turn
    WHERE turn.ours
      AND l.used_until < pg_catalog.clock_timestamp() - $3::double precision * interval '1 microsecond'
      AND l.token < {millis(pg_catalog.clock_timestamp())} - $3::bigint / 1000
    ORDER BY l.key
    FOR UPDATE OF l SKIP LOCKED
), deleted AS (
    DELETE FROM {pool} l USING spent s WHERE l.key = s.key RETURNING l.key
)
SELECT (SELECT pg_catalog.max(p.key) FROM page p) AS last, (SELECT pg_catalog.count(*) FROM page) AS seen,
       (SELECT pg_catalog.count(*) FROM deleted) AS deleted, (SELECT t.ours FROM turn t) AS ours
