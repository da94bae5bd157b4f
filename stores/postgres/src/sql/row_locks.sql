-- Which of these rows can be locked now, without waiting for the others; and who has the others locked, as far as that can
-- be told. A row that another session has inserted and not committed is not seen.
WITH free AS MATERIALIZED (
    SELECT r.key
    FROM {rows} r
    WHERE r.key = ANY ($1)
    ORDER BY r.key
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT r.key, f.key IS NOT NULL AS free, r.xmax::text AS blocker, l.pid
FROM {rows} r
LEFT JOIN free f ON f.key = r.key
LEFT JOIN pg_catalog.pg_locks l
    ON f.key IS NULL AND l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax
WHERE r.key = ANY ($1)
