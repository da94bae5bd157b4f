SELECT l.*, a.ids, pg_catalog.clock_timestamp() AS now
FROM (
    SELECT l.key, l.value, l.expire_time, l.token, l.acquired_at, l.inbox, l.waiters
    FROM {table} l
    WHERE l.key = ANY ($1) AND {limit}
    ORDER BY l.key  -- one order for all batches: they cannot deadlock
    FOR NO KEY UPDATE
) l JOIN (
    SELECT u.key, pg_catalog.array_agg(u.id) AS ids FROM unnest($1::text[], $2::text[]) AS u (key, id) GROUP BY u.key
) a ON a.key = l.key
