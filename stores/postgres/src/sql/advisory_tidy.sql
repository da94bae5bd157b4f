-- Forgets what sessions left behind that are gone. A session has the lock that stands for it before it writes anything.
DELETE FROM {session} s
WHERE NOT EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
      AND (l.classid::bigint << 32) | l.objid::bigint = s.session
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
