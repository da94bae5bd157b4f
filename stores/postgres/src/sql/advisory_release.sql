-- Gives an advisory lock back. False: this session did not have it.
WITH gone AS (
    DELETE FROM {session} s WHERE s.lock_id = $5
)
SELECT CASE
    WHEN $2 AND $3 THEN pg_advisory_unlock_shared(($1 >> 32)::integer, $4)
    WHEN $2 THEN pg_advisory_unlock(($1 >> 32)::integer, $4)
    WHEN $3 THEN pg_advisory_unlock_shared($1)
    ELSE pg_advisory_unlock($1)
END AS given_back
