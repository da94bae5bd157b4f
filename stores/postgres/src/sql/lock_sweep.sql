-- Looks at the next rows of the lease table and deletes those that were of no use for the whole retention time. A token
-- that ran ahead of the clock keeps its row until the clock has passed it by as much: whoever inserts the name anew
-- formed its token from the clock a moment ago. Rows that somebody works on are left alone, and so is everything while
-- another process sweeps.
WITH page AS MATERIALIZED (
    SELECT l.key, l.expire_time, l.token, l.waiters
    FROM {table} l
    WHERE l.key > $1
    ORDER BY l.key
    LIMIT $2
), turn AS MATERIALIZED (
    SELECT pg_catalog.pg_try_advisory_xact_lock(7235441220220052332) AS ours
), spent AS MATERIALIZED (
    SELECT l.key
    FROM {table} l JOIN page p ON p.key = l.key CROSS JOIN turn
    WHERE turn.ours
      AND l.expire_time < pg_catalog.clock_timestamp() - $3::double precision * interval '1 microsecond'
      AND l.token < {millis(pg_catalog.clock_timestamp())} - $3::bigint / 1000
      AND NOT EXISTS (
          SELECT FROM pg_catalog.jsonb_array_elements(l.waiters) AS w (entry)
          WHERE (w.entry ->> 'until'::text)::bigint > {micros(pg_catalog.clock_timestamp())})
    ORDER BY l.key
    FOR UPDATE OF l SKIP LOCKED
), deleted AS (
    DELETE FROM {table} l USING spent s WHERE l.key = s.key RETURNING l.key
)
SELECT (SELECT pg_catalog.max(p.key) FROM page p) AS last, (SELECT pg_catalog.count(*) FROM page) AS seen,
       (SELECT pg_catalog.count(*) FROM deleted) AS deleted, (SELECT t.ours FROM turn t) AS ours
