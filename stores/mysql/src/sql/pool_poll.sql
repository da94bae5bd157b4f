-- Waiters of permits ask again. One plain read answers those that do not fit and have an entry in the queue; the others get no
-- row, and their claims are sent.
SELECT b.n, 0 AS granted, NULL AS token,
    (SELECT MIN(o.expires_at) FROM {entry} o WHERE o.k = b.k AND (o.held = 1 OR o.seq < e.seq)) - {now} AS remaining,
    p.capacity,
    {now} - COALESCE((SELECT MAX(o.since) FROM {entry} o WHERE o.k = b.k AND o.held = 1), {now}) AS held_for,
    (SELECT COUNT(*) FROM {entry} o
     WHERE o.k = b.k AND o.held = 0 AND o.seq < e.seq AND o.expires_at > {now}) AS place,
    e.expires_at <= {now} + b.ttl DIV 2 AS is_old
FROM {batch} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
    STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
WHERE e.held = 0 AND b.ttl > 0 AND p.capacity = b.capacity AND e.expires_at > {now} AND p.capacity < (
    SELECT SUM(o.weight) FROM {entry} o
    WHERE o.k = b.k AND o.expires_at > {now} AND (o.held = 1 OR o.seq <= e.seq))
