-- Reads the next page of a table and deletes the rows that were unused for the whole retention time ($3 microseconds). A row
-- whose token is ahead of the clock is kept until the clock has passed the token by as much: a client that inserts the name
-- anew took its token from the clock a moment ago. Rows that another session has locked are skipped, and no row is deleted
-- while another process sweeps.
WITH page AS MATERIALIZED (
    SELECT r.key
    FROM {rows} r
    WHERE r.key > $1
    ORDER BY r.key
    LIMIT $2
), sweeper AS MATERIALIZED (
    SELECT pg_catalog.pg_try_advisory_xact_lock(7235441220220052332) AS ours
), unused AS MATERIALIZED (
    SELECT r.key
    FROM {rows} r JOIN page p ON p.key = r.key CROSS JOIN sweeper
    WHERE sweeper.ours
      AND r.{used_until} < pg_catalog.clock_timestamp() - $3::double precision * interval '1 microsecond'
      AND r.token < {millis(pg_catalog.clock_timestamp())} - $3::bigint / 1000
      {unless_waiters}
    ORDER BY r.key
    FOR UPDATE OF r SKIP LOCKED
), deleted AS (
    DELETE FROM {rows} r USING unused u WHERE r.key = u.key RETURNING r.key
)
SELECT (SELECT pg_catalog.max(p.key) FROM page p) AS last, (SELECT pg_catalog.count(*) FROM page) AS seen,
       (SELECT pg_catalog.count(*) FROM deleted) AS deleted, (SELECT s.ours FROM sweeper s) AS ours
