-- Acquires mutexes. The INSERT locks the rows in the order of their keys and creates those that are missing. The clock is
-- read after that wait, and nothing is decided before.
START TRANSACTION;
INSERT INTO {lock} (k, name) VALUES {rows} ON DUPLICATE KEY UPDATE k = VALUES(k);
SET @distlock_now = {now};
-- A retried claim is recognised. Its expiry starts anew and never moves back.
UPDATE {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.expires_at = GREATEST(l.expires_at, @distlock_now + b.expiry)
WHERE l.holder = b.id AND l.expires_at > @distlock_now;
-- A mutex that became free a moment ago is reserved for the first waiter: a client that releases and asks again at once does
-- not overtake the others each time.
-- No assignment reads a column that another one changes: a statement over two tables assigns in any order.
UPDATE {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.token = GREATEST(l.token + 1, @distlock_now DIV 1000), l.holder = b.id,
    l.acquired_at = @distlock_now, l.expires_at = @distlock_now + b.expiry
WHERE (l.holder = '' OR l.expires_at <= @distlock_now) AND (
    l.expires_at NOT BETWEEN @distlock_now - {reserved} AND @distlock_now OR NOT EXISTS (
        SELECT 1 FROM {entry} w WHERE w.k = b.k AND w.expires_at > @distlock_now));
-- A lease that expired is not ours, whatever its id.
SELECT b.n, l.holder = b.id AND l.expires_at > @distlock_now AS granted, l.token,
    IF(l.holder <> '' AND l.expires_at > @distlock_now, l.expires_at - @distlock_now, {reserved}) AS remaining,
    IF(l.holder <> '', @distlock_now - l.acquired_at, 0) AS held_for, 0 AS place
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k;
COMMIT
