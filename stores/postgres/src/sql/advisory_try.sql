-- Acquires an advisory lock if it is free now, and draws its token. No row: it is contended.
WITH attempt AS MATERIALIZED (
    SELECT CASE
        {unless_waiters}
        WHEN $2 AND $3 THEN pg_catalog.pg_try_advisory_lock_shared(($1 >> 32)::integer, $4)
        WHEN $2 THEN pg_catalog.pg_try_advisory_lock(($1 >> 32)::integer, $4)
        WHEN $3 THEN pg_catalog.pg_try_advisory_lock_shared($1)
        ELSE pg_catalog.pg_try_advisory_lock($1)
    END AS granted
)
INSERT INTO {session} AS s (lock_id, session, key, pair, shared, kind, name, weight, capacity, token)
SELECT $5::text, $6::bigint, $1, $2, $3, $7::text, $8::bytea, $9::integer, $10::integer,
       CASE WHEN pg_catalog.pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL
            THEN pg_catalog.nextval('{token}') END
FROM attempt
WHERE attempt.granted
RETURNING s.token
