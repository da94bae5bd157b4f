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
    SELECT pg_try_advisory_xact_lock(7235441220220052332) AS ours
), spent AS MATERIALIZED (
    SELECT l.key
    FROM {table} l JOIN page p ON p.key = l.key CROSS JOIN turn
    WHERE turn.ours
      AND l.expire_time < clock_timestamp() - $3::bigint * interval '1 microsecond'
      AND l.token < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - $3::bigint / 1000
      AND NOT EXISTS (
          SELECT FROM jsonb_array_elements(l.waiters) AS w (entry)
          WHERE (w.entry ->> 'until')::bigint > floor(extract(epoch FROM clock_timestamp()) * 1000000))
    ORDER BY l.key
    FOR UPDATE OF l SKIP LOCKED
), deleted AS (
    DELETE FROM {table} l USING spent s WHERE l.key = s.key RETURNING l.key
)
SELECT (SELECT max(p.key) FROM page p) AS last, (SELECT count(*) FROM page) AS seen,
       (SELECT count(*) FROM deleted) AS deleted
