-- Takes an advisory lock if it can be had now, and draws its token; no row: it cannot. $5 asks to be careful: this
-- session has the lock already, in shared mode, and the server would let it have it again past others who wait.
WITH asked AS MATERIALIZED (
    SELECT CASE
        WHEN $5 AND EXISTS (
            SELECT FROM pg_locks l
            WHERE l.locktype = 'advisory' AND NOT l.granted
              AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
              AND l.objsubid = CASE WHEN $2 THEN 2 ELSE 1 END
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN false
        WHEN $2 AND $3 THEN pg_try_advisory_lock_shared(($1 >> 32)::integer, $4)
        WHEN $2 THEN pg_try_advisory_lock(($1 >> 32)::integer, $4)
        WHEN $3 THEN pg_try_advisory_lock_shared($1)
        ELSE pg_try_advisory_lock($1)
    END AS granted
)
INSERT INTO {session} AS s (lock_id, session, key, pair, shared, kind, name, weight, capacity, token)
SELECT $6::text, $7::bigint, $1, $2, $3, $8::text, $9::bytea, $10::integer, $11::integer,
       CASE WHEN pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL THEN nextval('{token}') END
FROM asked
WHERE asked.granted
RETURNING s.token
