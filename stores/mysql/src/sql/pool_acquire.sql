-- Acquires permits. Every claim joins the queue. It is granted if the holders, the waiters before it and itself fit the
-- capacity together: waiters before it that are not asking now keep their share until they ask or expire.
--
-- Waiters whose entry needs no writing and who do not fit by a plain read stay out of the transaction: many waiters of one
-- pool ask without locking its row.
SET @distlock_now = {now};
-- Not SET @x = (SELECT …), which would lock the rows that it reads.
SELECT GROUP_CONCAT(b.n) INTO @distlock_free FROM {batch} b
    LEFT JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
    LEFT JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
    WHERE p.k IS NULL OR e.id IS NULL OR e.held = 1 OR b.ttl = 0 OR p.capacity <> b.capacity
        OR e.expires_at <= @distlock_now + b.ttl DIV 2
        OR p.capacity >= (
            SELECT SUM(o.weight) FROM {entry} o
            WHERE o.k = b.k AND o.expires_at > @distlock_now AND (o.held = 1 OR o.seq <= e.seq));
START TRANSACTION;
INSERT INTO {pool} (k, kind, name) SELECT b.k, b.kind, b.name FROM {free} b ON DUPLICATE KEY UPDATE k = VALUES(k);
SET @distlock_now = {now};
DELETE e FROM {free} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k
WHERE e.expires_at <= @distlock_now;
-- A pool that is not in use takes the capacity of the claim; one in use does if the claim resizes it.
UPDATE {free} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
SET p.capacity = b.capacity
WHERE p.capacity <> b.capacity AND (b.resizes = 1 OR NOT EXISTS (SELECT 1 FROM {entry} e WHERE e.k = p.k));
-- A retried claim is recognised. Its expiry starts anew and never moves back.
UPDATE {free} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
SET e.expires_at = GREATEST(e.expires_at, @distlock_now + b.expiry)
WHERE e.held = 1;
-- The entry of a waiter is written when it is missing or half of its time is over.
INSERT INTO {entry} (k, id, seq, held, weight, token, since, expires_at)
SELECT b.k, b.id, COALESCE((SELECT MAX(o.seq) FROM {entry} o WHERE o.k = b.k), 0) + 1 + b.n, 0, b.weight, 0,
    @distlock_now, @distlock_now + GREATEST(b.ttl, 1)
FROM {free} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
WHERE p.capacity = b.capacity AND NOT EXISTS (
    SELECT 1 FROM {entry} o
    WHERE o.k = b.k AND o.id = b.id AND (o.held = 1 OR o.expires_at > @distlock_now + b.ttl DIV 2))
ON DUPLICATE KEY UPDATE expires_at = GREATEST({entry}.expires_at, VALUES(expires_at));
UPDATE (
    SELECT e.k, e.id,
        SUM(e.weight) OVER w AS upto,
        SUM(e.held = 0 AND c.id IS NOT NULL) OVER w AS place
    FROM (SELECT DISTINCT b.k FROM {free} b) a
        STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = a.k
        LEFT JOIN {free} c ON c.k = e.k AND c.id = e.id
    WINDOW w AS (PARTITION BY e.k ORDER BY e.held DESC, e.seq ROWS UNBOUNDED PRECEDING)
) q
    STRAIGHT_JOIN {free} b ON b.k = q.k AND b.id = q.id
    STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = q.k
    STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = q.k AND e.id = q.id
SET e.held = 1, e.token = GREATEST(p.token + 1, @distlock_now DIV 1000) + q.place - 1,
    e.since = @distlock_now, e.expires_at = @distlock_now + b.expiry
WHERE e.held = 0 AND q.upto <= p.capacity AND p.capacity = b.capacity;
UPDATE (
    SELECT e.k, MAX(e.token) AS token
    FROM (SELECT DISTINCT b.k FROM {free} b) a STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = a.k
    GROUP BY e.k
) m STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = m.k
SET p.token = m.token, p.used_at = @distlock_now
WHERE m.token > p.token;
SELECT b.n, e.held AS granted, e.token,
    (SELECT MIN(o.expires_at) FROM {entry} o WHERE o.k = b.k AND (o.held = 1 OR o.seq < e.seq)) - @distlock_now
        AS remaining, p.capacity,
    @distlock_now - COALESCE((SELECT MAX(o.since) FROM {entry} o WHERE o.k = b.k AND o.held = 1), @distlock_now) AS held_for,
    (SELECT COUNT(*) FROM {entry} o
     WHERE o.k = b.k AND o.held = 0 AND o.seq < e.seq AND o.expires_at > @distlock_now) AS place
FROM {batch} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
    LEFT JOIN {entry} e ON e.k = b.k AND e.id = b.id AND p.capacity = b.capacity;
-- A single attempt leaves no entry.
DELETE e FROM {free} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
WHERE e.held = 0 AND b.ttl = 0;
COMMIT
