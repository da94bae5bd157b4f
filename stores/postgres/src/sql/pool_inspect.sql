-- Pools that somebody holds or waits for: of this key, or whose key begins like this. Names that are only hashed into
-- their key come all; the client knows which it wants. $3: those who hold and wait last as long as their sessions.
WITH alive AS MATERIALIZED (
    SELECT 'dl_' || lpad(to_hex(l.classid::bigint), 8, '0') || lpad(to_hex(l.objid::bigint), 8, '0') AS inbox
    FROM pg_locks l
    WHERE $3 AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
)
SELECT p.key, p.name, p.capacity, t.now,
       (SELECT jsonb_agg(h.entry ORDER BY h.place)
        FROM jsonb_array_elements(p.holders) WITH ORDINALITY AS h (entry, place)
        WHERE (h.entry ->> 'until')::bigint > t.now
          AND (NOT $3 OR h.entry ->> 'inbox' IN (SELECT a.inbox FROM alive a)))::text AS holders,
       (SELECT jsonb_agg(w.entry ORDER BY w.place)
        FROM jsonb_array_elements(p.queue) WITH ORDINALITY AS w (entry, place)
        WHERE (w.entry ->> 'until')::bigint > t.now
          AND (NOT $3 OR w.entry ->> 'inbox' IN (SELECT a.inbox FROM alive a)))::text AS queue
FROM {pool} p
CROSS JOIN (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) t
WHERE (p.key = $1 OR $1 IS NULL)
  AND (p.name IS NOT NULL OR left(p.key, length($2)) = $2)
  AND p.used_until > to_timestamp(t.now / 1000000.0)
