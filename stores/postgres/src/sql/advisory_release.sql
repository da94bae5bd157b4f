-- Releases an advisory lock. False: this session did not hold it. The row that shows the holder is deleted too, unless
-- another session has locked it: no decision depends on the row, no statement waits for it, and a sweep deletes it later.
WITH ours AS MATERIALIZED (
    SELECT s.lock_id FROM {session} s WHERE s.lock_id = $5 FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM {session} s USING ours o WHERE s.lock_id = o.lock_id
)
SELECT CASE
    WHEN $2 AND $3 THEN pg_catalog.pg_advisory_unlock_shared(($1 >> 32)::integer, $4)
    WHEN $2 THEN pg_catalog.pg_advisory_unlock(($1 >> 32)::integer, $4)
    WHEN $3 THEN pg_catalog.pg_advisory_unlock_shared($1)
    ELSE pg_catalog.pg_advisory_unlock($1)
END AS released
