-- Releases permits and withdraws claims for them.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows
FROM {batch} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k FOR UPDATE;
SET @distlock_now = {now};
SELECT b.n, e.expires_at > @distlock_now AS ours
FROM {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id;
DELETE e FROM {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id;
UPDATE {batch} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k SET p.used_at = @distlock_now;
COMMIT
