-- Releases several advisory locks, and deletes the rows of these lock ids, except rows that another session has locked: no
-- decision depends on a row, no statement waits for one, and a sweep deletes it later.
WITH ours AS MATERIALIZED (
    SELECT s.lock_id FROM {session} s WHERE s.lock_id = ANY ($4::text[]) FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM {session} s USING ours o WHERE s.lock_id = o.lock_id
)
SELECT pg_catalog.count(*) FILTER (WHERE CASE
    WHEN c.pair THEN pg_catalog.pg_advisory_unlock((c.key >> 32)::integer, c.second)
    ELSE pg_catalog.pg_advisory_unlock(c.key)
END) AS released
FROM unnest($1::bigint[], $2::boolean[], $3::integer[]) AS c (key, pair, second)
