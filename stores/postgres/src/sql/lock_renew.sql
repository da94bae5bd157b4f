-- Starts the expiry of each lease anew where the lock is still held under its id. Those rows come back; a lease
-- without a row is not ours any more. The larger token stays, so that a quorum can write back its highest.
WITH lease AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS u (key, id, expiry, token)
), locked AS MATERIALIZED (
    SELECT l.key
    FROM {table} l
    WHERE l.key = ANY ($1)
    ORDER BY l.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
)
UPDATE {table} l
SET expire_time = clock_timestamp() + lease.expiry * interval '1 microsecond',
    token = greatest(l.token, lease.token)
FROM locked JOIN lease ON lease.key = locked.key
WHERE l.key = locked.key AND l.value = lease.id AND l.expire_time > clock_timestamp()
RETURNING l.key, l.value
