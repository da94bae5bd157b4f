-- Waits for an advisory lock in the server's own line, and draws its token once it is granted.
WITH waited AS MATERIALIZED (
    SELECT CASE
        WHEN $2 AND $3 THEN pg_advisory_lock_shared(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $2 THEN pg_advisory_lock(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $3 THEN pg_advisory_lock_shared($1) IS NOT NULL
        ELSE pg_advisory_lock($1) IS NOT NULL
    END AS granted
)
UPDATE {session} s
SET token = CASE WHEN pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL THEN nextval('{token}') END,
    since = clock_timestamp()
FROM waited
WHERE waited.granted AND s.lock_id = $5
RETURNING s.token
