-- Pools that somebody holds or waits for: of this key, or whose key begins like this. Names that are only hashed into
-- their key come all; the client knows which it wants. $3: those who hold and wait last as long as their sessions.
WITH alive AS MATERIALIZED (
    SELECT 'dl_' || pg_catalog.lpad(pg_catalog.to_hex(l.classid::bigint), 8, '0')
                 || pg_catalog.lpad(pg_catalog.to_hex(l.objid::bigint), 8, '0') AS inbox
    FROM pg_catalog.pg_locks l
    WHERE $3 AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
)
SELECT p.key, p.name, p.capacity, t.now,
       (SELECT pg_catalog.jsonb_agg(h.entry ORDER BY h.place)
        FROM pg_catalog.jsonb_array_elements(p.holders) WITH ORDINALITY AS h (entry, place)
        WHERE (h.entry ->> 'until'::text)::bigint > t.now
          AND (NOT $3 OR h.entry ->> 'inbox'::text IN (SELECT a.inbox FROM alive a)))::text AS holders,
       (SELECT pg_catalog.jsonb_agg(w.entry ORDER BY w.place)
        FROM pg_catalog.jsonb_array_elements(p.queue) WITH ORDINALITY AS w (entry, place)
        WHERE (w.entry ->> 'until'::text)::bigint > t.now
          AND (NOT $3 OR w.entry ->> 'inbox'::text IN (SELECT a.inbox FROM alive a)))::text AS queue
FROM {pool} p
CROSS JOIN (SELECT {micros(pg_catalog.clock_timestamp())} AS now) t
WHERE (p.key = $1 OR $1 IS NULL)
  AND (p.name IS NOT NULL OR pg_catalog.left(p.key, pg_catalog.length($2)) = $2)
  AND p.used_until > pg_catalog.to_timestamp(t.now::double precision / 1000000::double precision)
