-- Keeps the entries of waiters: half of their time is over. A waiter that was granted, withdrew or expired meanwhile is left
-- alone. One row is locked at a time, and no row of a mutex or pool.
UPDATE {batch} b STRAIGHT_JOIN {entry} o FORCE INDEX (PRIMARY) ON o.k = b.k AND o.id = b.id
SET o.expires_at = GREATEST(o.expires_at, {now} + b.ttl)
WHERE o.held = 0 AND o.expires_at > {now}
