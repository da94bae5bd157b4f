-- Mutexes with a holder or a waiter: the one with key $1, or all whose key begins with $2. Rows whose key is the hash of
-- a name are all returned; the client filters them by name.
SELECT l.key, l.name, l.value, l.token, l.acquired_at,
       l.value <> '' AND l.expire_time > t.now AS held,
       {micros(l.expire_time - t.now)} AS remaining,
       (SELECT pg_catalog.jsonb_agg(w.entry ORDER BY w.place)
        FROM pg_catalog.jsonb_array_elements(l.waiters) WITH ORDINALITY AS w (entry, place)
        WHERE (w.entry ->> 'until'::text)::bigint > {micros(t.now)})::text AS waiters
FROM {table} l CROSS JOIN (SELECT pg_catalog.clock_timestamp() AS now) t
WHERE (l.key = $1 OR $1 IS NULL)
  AND (l.name IS NOT NULL OR pg_catalog.left(l.key, pg_catalog.length($2)) = $2)
  AND (l.waiters IS NOT NULL OR l.value <> '' AND l.expire_time > t.now)
