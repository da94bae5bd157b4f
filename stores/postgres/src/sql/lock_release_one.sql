SELECT l.*, ARRAY[coalesce($2::text, l.value)] AS ids,  -- NULL: the holder
       pg_catalog.clock_timestamp() AS now
FROM (
    SELECT l.key, l.value, l.expire_time, l.token, l.acquired_at, l.inbox, l.waiters
    FROM {table} l
    WHERE l.key = $1::text AND {limit}
    FOR NO KEY UPDATE
) l
