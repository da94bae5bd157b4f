-- Starts the expiry of each lease anew where the lock is still held under its id. The numbers of those come back; the
-- others are not ours any more. The larger token stays, so that a quorum can write back its highest.
WITH lease AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS u (key, id, expiry, token, n)
), locked AS MATERIALIZED (
    SELECT l.key
    FROM {table} l
    WHERE l.key = ANY ($1)
    ORDER BY l.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
), due AS MATERIALIZED (
    -- Joined here, where the batch is, and not row by row below.
    SELECT lease.* FROM locked JOIN lease ON lease.key = locked.key
)
UPDATE {table} l
SET expire_time = clock_timestamp() + due.expiry * interval '1 microsecond',
    token = greatest(l.token, due.token)
FROM due
WHERE l.key = due.key AND l.value = due.id AND l.expire_time > clock_timestamp()
RETURNING due.n
