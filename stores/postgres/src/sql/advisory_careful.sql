-- This session has the lock already, in shared mode, and the server would let it have it again past others who wait.
WHEN EXISTS (
    SELECT FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND NOT l.granted
      AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
      AND l.objsubid = CASE WHEN $2 THEN 2 ELSE 1 END
      AND l.database = (
          SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())) THEN false
