-- Which of these rows can be locked now, without waiting, and which transaction has locked the others. A row that another session
-- has inserted and not committed is not visible. Nothing is changed, so nothing waits for the disk.
WITH free AS MATERIALIZED (
    SELECT r.key
    FROM {rows} r
    WHERE r.key = ANY ($1)
    ORDER BY r.key
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT r.key, f.key IS NOT NULL AS free, r.xmax::text AS blocker,
       pg_catalog.set_config('synchronous_commit', 'off', true) AS commit
FROM {rows} r
LEFT JOIN free f ON f.key = r.key
WHERE r.key = ANY ($1)
