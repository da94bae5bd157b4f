SET @distlock_now = {now};
SELECT l.kind, l.name, l.capacity, e.id, e.held, e.weight, e.token, e.since, e.expires_at - @distlock_now AS remaining
FROM {pool} l JOIN {entry} e ON e.k = l.k
WHERE e.expires_at > @distlock_now AND {wanted} ORDER BY l.k, e.held DESC, e.seq
