-- Releases several advisory locks that have no rows, and returns how many of them this session held.
SELECT pg_catalog.count(*) FILTER (WHERE CASE
    WHEN c.pair THEN pg_catalog.pg_advisory_unlock((c.key >> 32)::integer, c.second)
    ELSE pg_catalog.pg_advisory_unlock(c.key)
END) AS released
FROM unnest($1::bigint[], $2::boolean[], $3::integer[]) AS c (key, pair, second)
