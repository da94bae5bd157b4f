-- Waiters of mutexes ask again. One plain read answers those that are busy and have an entry in the wait queue; the others get
-- no row, and their claims are sent. A mutex that became free a moment ago is reserved for the first waiter.
SELECT b.n, 0 AS granted, NULL AS token,
    IF(l.holder <> '' AND l.expires_at > {now}, l.expires_at,
       (SELECT MIN(w.expires_at) FROM {entry} w WHERE w.k = b.k AND w.id <> b.id)) - {now} AS remaining,
    IF(l.holder <> '', {now} - l.acquired_at, 0) AS held_for,
    (SELECT COUNT(*) FROM {entry} w WHERE w.k = b.k AND w.seq < o.seq AND w.expires_at > {now}) AS place,
    o.expires_at <= {now} + b.ttl DIV 2 AS is_old
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
    STRAIGHT_JOIN {entry} o FORCE INDEX (PRIMARY) ON o.k = b.k AND o.id = b.id
WHERE l.holder <> b.id AND b.ttl > 0 AND o.expires_at > {now} AND (
    l.holder <> '' AND l.expires_at > {now} OR l.expires_at BETWEEN {now} - {reserved} AND {now} AND EXISTS (
        SELECT 1 FROM {entry} w WHERE w.k = b.k AND w.seq < o.seq AND w.expires_at > {now}))
