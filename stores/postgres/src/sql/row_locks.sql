-- Which of these rows can be locked now, without waiting; and which session has locked the others, as far as the server
-- shows it. A row that another session has inserted and not committed is not visible.
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
