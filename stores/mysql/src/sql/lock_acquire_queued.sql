-- As lock_acquire.sql, for a batch in which a claim waits, or must not overtake a waiter. A waiter's entry is written when
-- it is missing or half of its time is over. Claims that are busy by a plain read, with an entry that needs no writing,
-- stay out of the transaction: many waiters of one mutex ask without locking its row.
SET @distlock_now = {now};
-- Not SET @x = (SELECT …), which would lock the rows that it reads.
SELECT GROUP_CONCAT(b.n) INTO @distlock_free FROM {batch} b
    LEFT JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
    LEFT JOIN {entry} o FORCE INDEX (PRIMARY) ON o.k = b.k AND o.id = b.id
    WHERE l.k IS NULL OR l.expires_at <= @distlock_now OR l.holder IN ('', b.id)
        OR (b.ttl > 0 AND COALESCE(o.expires_at, 0) <= @distlock_now + b.ttl DIV 2)
        OR (b.ttl = 0 AND o.id IS NOT NULL);
START TRANSACTION;
INSERT INTO {lock} (k, name) SELECT b.k, b.name FROM {free} b ON DUPLICATE KEY UPDATE k = VALUES(k);
SET @distlock_now = {now};
DELETE w FROM {free} b STRAIGHT_JOIN {entry} w FORCE INDEX (PRIMARY) ON w.k = b.k
WHERE w.expires_at <= @distlock_now;
UPDATE {free} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.expires_at = GREATEST(l.expires_at, @distlock_now + b.expiry)
WHERE l.holder = b.id AND l.expires_at > @distlock_now;
UPDATE {free} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.token = GREATEST(l.token + 1, @distlock_now DIV 1000), l.holder = b.id,
    l.acquired_at = @distlock_now, l.expires_at = @distlock_now + b.expiry
WHERE (l.holder = '' OR l.expires_at <= @distlock_now) AND (
    b.in_order = 0 AND l.expires_at NOT BETWEEN @distlock_now - {reserved} AND @distlock_now OR NOT EXISTS (
    SELECT 1 FROM {entry} w WHERE w.k = b.k AND w.seq < COALESCE(
        (SELECT o.seq FROM {entry} o WHERE o.k = b.k AND o.id = b.id), 18446744073709551615)));
DELETE w FROM {free} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
    STRAIGHT_JOIN {entry} w FORCE INDEX (PRIMARY) ON w.k = b.k AND w.id = b.id
WHERE l.holder = b.id AND l.expires_at > @distlock_now OR b.ttl = 0;
INSERT INTO {entry} (k, id, seq, held, weight, token, since, expires_at)
SELECT b.k, b.id, COALESCE((SELECT MAX(o.seq) FROM {entry} o WHERE o.k = b.k), 0) + 1 + b.n, 0, 1, 0,
    @distlock_now, @distlock_now + b.ttl
FROM {free} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
WHERE b.ttl > 0 AND (l.holder <> b.id OR l.expires_at <= @distlock_now) AND NOT EXISTS (
    SELECT 1 FROM {entry} o WHERE o.k = b.k AND o.id = b.id AND o.expires_at > @distlock_now + b.ttl DIV 2)
ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at);
SELECT b.n, l.holder = b.id AND l.expires_at > @distlock_now AS granted, l.token,
    IF(l.holder <> '' AND l.expires_at > @distlock_now, l.expires_at,
       (SELECT MIN(w.expires_at) FROM {entry} w WHERE w.k = b.k AND w.id <> b.id)) - @distlock_now AS remaining,
    IF(l.holder <> '', @distlock_now - l.acquired_at, 0) AS held_for,
    (SELECT COUNT(*) FROM {entry} w WHERE w.k = b.k AND w.expires_at > @distlock_now AND w.seq < COALESCE(
        (SELECT o.seq FROM {entry} o WHERE o.k = b.k AND o.id = b.id), 18446744073709551615)) AS place
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k;
COMMIT
