-- Starts the expiry of each lease anew where the lock is still held under its id. The numbers of those come back; the
-- others are not ours any more. The larger token stays, so that a quorum can write back its highest; and so does the
-- later end, because a renewal that was sent earlier may be applied later.
--
-- The rows are read again by FOR NO KEY UPDATE after waiting for their locks, and everything that decides reads that
-- copy: the table itself is seen as it was before the wait, when the lease may have been about to end.
WITH lease AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS u (key, id, expiry, token, n)
), locked AS MATERIALIZED (
    SELECT l.key, l.value, l.expire_time, l.token
    FROM {table} l
    WHERE l.key = ANY ($1) AND {limit}
    ORDER BY l.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
), due AS MATERIALIZED (
    -- Joined here, where the batch is, and not row by row below.
    SELECT lease.n, locked.key, greatest(locked.token, lease.token) AS token,
           greatest(locked.expire_time, pg_catalog.clock_timestamp() + lease.expiry::double precision * interval '1 microsecond')
               AS expire_time
    FROM locked JOIN lease ON lease.key = locked.key AND lease.id = locked.value
    WHERE locked.expire_time > pg_catalog.clock_timestamp()
)
UPDATE {table} l
SET expire_time = due.expire_time, token = due.token
FROM due
WHERE l.key = due.key
RETURNING due.n
