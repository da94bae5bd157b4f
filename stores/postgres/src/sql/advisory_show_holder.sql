-- The row that shows a waiter becomes one that shows a holder, unless another session has locked it: no decision depends on the
-- row, and no statement waits for it. $3: since how many seconds the lock is held. Returns no
-- row if it was locked.
WITH ours AS MATERIALIZED (
    SELECT s.lock_id FROM {session} s WHERE s.lock_id = $1 FOR UPDATE SKIP LOCKED
)
UPDATE {session} s
SET token = $2, since = pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $3)
FROM ours o
WHERE s.lock_id = o.lock_id
RETURNING s.lock_id
