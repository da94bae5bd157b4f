-- Acquires those of several advisory locks that are free now, in exclusive mode. All of them get one token, which is drawn
-- after the last of them was granted: tokens increase for each lock, and the keys of a batch differ.
WITH attempt AS MATERIALIZED (
    SELECT c.n, CASE
        WHEN c.pair THEN pg_catalog.pg_try_advisory_lock((c.key >> 32)::integer, c.second)
        ELSE pg_catalog.pg_try_advisory_lock(c.key)
    END AS granted
    FROM unnest($1::bigint[], $2::boolean[], $3::integer[]) WITH ORDINALITY AS c (key, pair, second, n)
), outcome AS MATERIALIZED (
    SELECT pg_catalog.array_agg(a.granted ORDER BY a.n) AS granted, pg_catalog.bool_or(a.granted) AS is_granted
    FROM attempt a
)
SELECT o.granted, CASE
    WHEN NOT o.is_granted THEN NULL
    WHEN pg_catalog.pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL THEN pg_catalog.nextval('{token}')
END AS token
FROM outcome o
