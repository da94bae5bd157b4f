-- Forgets what sessions left behind: rows of sessions that ended, and rows that are older than a minute about locks that
-- their session does not have and does not wait for. A session has the lock that stands for it before it writes anything.
-- Rows that another session has locked are left alone.
WITH advisory AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, l.objsubid = 2 AS pair, (l.classid::bigint << 32) | l.objid::bigint AS key
    FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid IN (1, 2)
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
), gone AS MATERIALIZED (
    SELECT s.lock_id
    FROM {session} s
    LEFT JOIN advisory home ON home.key = s.session AND NOT home.pair AND home.granted AND home.mode = 'ExclusiveLock'
    WHERE home.pid IS NULL
       OR s.since < pg_catalog.clock_timestamp() - interval '1 minute'
          AND NOT EXISTS (SELECT FROM advisory a WHERE a.key = s.key AND a.pair = s.pair AND a.pid = home.pid)
    FOR UPDATE OF s SKIP LOCKED
)
DELETE FROM {session} s USING gone g WHERE s.lock_id = g.lock_id;
