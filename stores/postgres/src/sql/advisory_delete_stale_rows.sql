-- Deletes rows of sessions that ended, and rows older than a minute whose session neither holds nor waits for the lock. A
-- session holds its session lock before it writes a row. Rows that another session has locked are skipped.
WITH advisory AS MATERIALIZED (
    {advisory_locks}
), stale AS MATERIALIZED (
    SELECT s.lock_id
    FROM {session} s
    LEFT JOIN advisory own ON own.key = s.session AND NOT own.pair AND own.granted AND own.mode = 'ExclusiveLock'
    WHERE own.pid IS NULL
       OR s.since < pg_catalog.clock_timestamp() - interval '1 minute'
          AND NOT EXISTS (SELECT FROM advisory a WHERE a.key = s.key AND a.pair = s.pair AND a.pid = own.pid)
    FOR UPDATE OF s SKIP LOCKED
)
DELETE FROM {session} s USING stale g WHERE s.lock_id = g.lock_id;
