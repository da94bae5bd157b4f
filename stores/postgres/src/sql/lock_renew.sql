-- Restarts the expiry of each lease whose lock is still held under its id. One row answers, because a process may hold a hundred
-- thousand: how many were renewed, and unless all were, their numbers. The larger token is kept, so that a quorum can write back
-- its highest one, and so is the later expiry: a renewal that was sent earlier may be applied later.
--
-- $3 has one expiry if it is that of all; $4 has no tokens if all rows are known to have them.
--
-- FOR NO KEY UPDATE reads the rows again after waiting for their row locks, and every decision is made on that copy: the table
-- itself is seen as it was before the wait, when the lease may have been about to expire.
WITH lease AS MATERIALIZED (
    SELECT u.key, u.id, coalesce(u.expiry, ($3)[1]) AS expiry, u.token, u.n
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS u (key, id, expiry, token, n)
), locked AS MATERIALIZED (
    SELECT l.key, l.value, l.expire_time, l.token
    FROM {table} l
    WHERE l.key = ANY ($1) AND {limit}
    ORDER BY l.key  -- one order for all batches: they cannot deadlock
    FOR NO KEY UPDATE
), due AS MATERIALIZED (
    -- Joined here, once for the batch, and not row by row below.
    SELECT lease.n, locked.key, greatest(locked.token, lease.token) AS token,
           greatest(locked.expire_time, pg_catalog.clock_timestamp() + lease.expiry::double precision * interval '1 microsecond')
               AS expire_time
    FROM locked JOIN lease ON lease.key = locked.key AND lease.id = locked.value
    WHERE locked.expire_time > pg_catalog.clock_timestamp()
), renewed AS (
    UPDATE {table} l
    SET expire_time = due.expire_time, token = due.token
    FROM due
    WHERE l.key = due.key
    RETURNING due.n
)
SELECT pg_catalog.count(*) AS renewed,
       CASE WHEN pg_catalog.count(*) < pg_catalog.cardinality($1) THEN pg_catalog.array_agg(renewed.n) END AS numbers
FROM renewed
