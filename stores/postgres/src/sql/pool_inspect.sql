-- Pools with a holder or a waiter: the one with key $1, or all whose key begins with $2. Rows whose key is the hash of a
-- name are all returned; the client filters them by name. {sessions}: holders and waiters last as long as their sessions.
WITH alive AS MATERIALIZED (
    {live_sessions}
)
SELECT p.key, p.name, p.capacity, t.now,
       (SELECT pg_catalog.jsonb_agg(h.entry ORDER BY h.place)
        FROM pg_catalog.jsonb_array_elements(p.holders) WITH ORDINALITY AS h (entry, place)
        WHERE (h.entry ->> 'until'::text)::bigint > t.now
          AND (NOT {sessions} OR h.entry ->> 'inbox'::text IN (SELECT a.inbox FROM alive a)))::text AS holders,
       (SELECT pg_catalog.jsonb_agg(w.entry ORDER BY w.place)
        FROM pg_catalog.jsonb_array_elements(p.queue) WITH ORDINALITY AS w (entry, place)
        WHERE (w.entry ->> 'until'::text)::bigint > t.now
          AND (NOT {sessions} OR w.entry ->> 'inbox'::text IN (SELECT a.inbox FROM alive a)))::text AS queue
FROM {pool} p
CROSS JOIN (SELECT {micros(pg_catalog.clock_timestamp())} AS now) t
WHERE (p.key = $1 OR $1 IS NULL)
  AND (p.name IS NOT NULL OR pg_catalog.left(p.key, pg_catalog.length($2)) = $2)
  AND p.used_until > pg_catalog.to_timestamp(t.now::double precision / 1000000::double precision)
