-- The sessions of these transactions, as far as the server shows them, and whether they wait for their clients. Each of our
-- statements is a transaction of its own, so a session of ours that has locked a row does not wait for its client.
SELECT l.transactionid::text AS blocker, l.pid,
       coalesce(pg_catalog.left(a.state, 19) = 'idle in transaction', false) AS idle
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid::text = ANY ($1)
