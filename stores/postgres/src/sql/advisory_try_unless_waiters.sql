-- The session holds the lock in shared mode already. The server would grant it again ahead of waiters.
WHEN EXISTS (
    SELECT FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND NOT l.granted
      AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
      AND l.objsubid = CASE WHEN $2 THEN 2 ELSE 1 END AND l.database = {this_database}) THEN false
