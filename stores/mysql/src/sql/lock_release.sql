-- Releases mutexes and withdraws claims for them.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k FOR UPDATE;
SET @distlock_now = {now};
SELECT b.n, l.holder = b.id AND l.expires_at > @distlock_now OR EXISTS (
    SELECT 1 FROM {entry} w WHERE w.k = b.k AND w.id = b.id AND w.expires_at > @distlock_now) AS ours
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k;
UPDATE {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.holder = '', l.expires_at = @distlock_now
WHERE l.holder = b.id AND l.expires_at > @distlock_now;
DELETE w FROM {batch} b STRAIGHT_JOIN {entry} w FORCE INDEX (PRIMARY) ON w.k = b.k AND w.id = b.id;
COMMIT
