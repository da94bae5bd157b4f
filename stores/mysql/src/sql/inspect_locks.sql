SET @distlock_now = {now};
SELECT l.name, l.holder AS id, 1 AS held, 1 AS weight, l.token, l.acquired_at AS since, l.expires_at - @distlock_now AS remaining,
    0 AS seq
FROM {lock} l WHERE l.holder <> '' AND l.expires_at > @distlock_now AND {wanted}
UNION ALL
SELECT l.name, e.id, 0, 1, 0, 0, 0, e.seq
FROM {lock} l JOIN {entry} e ON e.k = l.k
WHERE e.expires_at > @distlock_now AND {wanted}
ORDER BY seq
