-- Of the next page of semaphores, those with permits or queue entries of sessions that ended.
WITH alive AS MATERIALIZED (
    {live_sessions}
), page AS MATERIALIZED (
    SELECT p.key, p.holders || p.queue AS entries
    FROM {session_pool} p
    WHERE p.key > $1
    ORDER BY p.key
    LIMIT $2
)
SELECT p.key
FROM page p
WHERE EXISTS (
    SELECT FROM pg_catalog.jsonb_array_elements(p.entries) AS e (entry)
    WHERE e.entry ->> 'inbox'::text NOT IN (SELECT a.inbox FROM alive a))
