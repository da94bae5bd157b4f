-- Waits for an advisory lock in the server's own wait queue, and draws its token once it is granted. The row that shows the
-- waiter becomes one that shows a holder, unless another session has locked it: no decision depends on the row, and no
-- statement waits for it.
WITH waited AS MATERIALIZED (
    SELECT CASE
        WHEN $2 AND $3 THEN pg_catalog.pg_advisory_lock_shared(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $2 THEN pg_catalog.pg_advisory_lock(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $3 THEN pg_catalog.pg_advisory_lock_shared($1) IS NOT NULL
        ELSE pg_catalog.pg_advisory_lock($1) IS NOT NULL
    END AS granted
), drawn AS MATERIALIZED (
    SELECT CASE WHEN pg_catalog.pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL
                THEN pg_catalog.nextval('{token}') END AS token
    FROM waited
    WHERE waited.granted
), ours AS MATERIALIZED (
    SELECT s.lock_id, d.token
    FROM drawn d CROSS JOIN {session} s
    WHERE s.lock_id = $5
    FOR UPDATE OF s SKIP LOCKED
), shown AS (
    UPDATE {session} s
    SET token = o.token, since = pg_catalog.clock_timestamp()
    FROM ours o
    WHERE s.lock_id = o.lock_id
)
SELECT d.token FROM drawn d
