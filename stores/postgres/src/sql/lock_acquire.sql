-- Takes each lock that is free. One row for each claim comes back: whose the lock is now, and for how long.
--
-- The row under ON CONFLICT DO UPDATE is the only one that is read again after waiting for its lock, so everything
-- that decides is in that row. `now` is taken before the wait. That is on the safe side: a lease that seems to live
-- a little longer is not given away, and one that is granted ends a little earlier, but never before the time that
-- the client counts from the sending of its request.
--
-- OFFSET 0 keeps a subquery whole: PostgreSQL would otherwise work out its expressions once for each use.
INSERT INTO {table} AS l (key, value, expire_time, token, acquired_at, inbox, waits, in_turn, name)
SELECT c.key, c.id, c.now + c.expiry * interval '1 microsecond',
       floor(extract(epoch FROM c.now) * 1000)::bigint, c.now, c.inbox, c.waits, c.in_turn, c.name
FROM (
    SELECT u.*, clock_timestamp() AS now
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[], $7::bytea[])
         AS u (key, id, expiry, inbox, waits, in_turn, name)
    ORDER BY u.key COLLATE "C"  -- one order for all: batches cannot deadlock
) c
ON CONFLICT (key) DO UPDATE
SET (value, expire_time, token, acquired_at, inbox, waits, in_turn, waiters) = (
    SELECT
        CASE WHEN d.taken THEN EXCLUDED.value WHEN d.free THEN '' ELSE l.value END,
        CASE WHEN d.taken OR d.mine THEN EXCLUDED.expire_time ELSE l.expire_time END,
        CASE WHEN d.taken THEN greatest(l.token + 1, EXCLUDED.token) ELSE l.token END,
        CASE WHEN d.taken THEN EXCLUDED.acquired_at ELSE l.acquired_at END,
        CASE WHEN d.taken THEN EXCLUDED.inbox ELSE l.inbox END,
        CASE WHEN d.taken THEN EXCLUDED.waits ELSE l.waits END,
        CASE WHEN d.taken THEN EXCLUDED.in_turn ELSE l.in_turn END,
        CASE
            WHEN NOT d.known AND NOT d.behind AND coalesce(jsonb_array_length(l.waiters), 0) < 100 THEN
                CASE WHEN d.joins THEN coalesce(l.waiters, '[]') || d.entry ELSE l.waiters END
            ELSE (
                -- Who asks again keeps the place; those who have not been heard of for too long are gone.
                SELECT jsonb_agg(w.entry ORDER BY w.place)
                FROM (
                    SELECT CASE WHEN w.entry ->> 'id' = EXCLUDED.value THEN d.entry ELSE w.entry END AS entry, w.place
                    FROM jsonb_array_elements(l.waiters) WITH ORDINALITY AS w (entry, place)
                    WHERE CASE WHEN w.entry ->> 'id' = EXCLUDED.value THEN d.joins
                               ELSE (w.entry ->> 'until')::bigint > d.now END
                    UNION ALL
                    SELECT d.entry, 2147483647 WHERE d.joins AND NOT d.known
                ) w)
        END
    FROM (
        SELECT s.*, s.free AND NOT s.behind AS taken, s.blocked AND EXCLUDED.waits IS NOT NULL AS joins,
               CASE WHEN s.blocked AND EXCLUDED.waits IS NOT NULL THEN jsonb_build_object(
                   'id', EXCLUDED.value, 'inbox', EXCLUDED.inbox,
                   'expiry', floor(extract(epoch FROM EXCLUDED.expire_time - EXCLUDED.acquired_at) * 1000000)::bigint,
                   'asked', s.now, 'until', s.now + EXCLUDED.waits)
               END AS entry
        FROM (
            SELECT f.*, NOT f.mine AND (NOT f.free OR f.behind) AS blocked
            FROM (
                SELECT t.*, NOT t.free AND l.value = EXCLUDED.value AS mine,
                       coalesce(l.waiters @> jsonb_build_array(jsonb_build_object('id', EXCLUDED.value)), false) AS known,
                       t.free AND EXCLUDED.in_turn AND l.waiters IS NOT NULL AND coalesce((
                           SELECT w.entry ->> 'id' <> EXCLUDED.value
                           FROM jsonb_array_elements(l.waiters) WITH ORDINALITY AS w (entry, place)
                           WHERE (w.entry ->> 'until')::bigint > t.now
                           ORDER BY w.place LIMIT 1), false) AS behind
                FROM (
                    SELECT l.value = '' OR l.expire_time <= EXCLUDED.acquired_at AS free,
                           floor(extract(epoch FROM EXCLUDED.acquired_at) * 1000000)::bigint AS now
                    OFFSET 0
                ) t
                OFFSET 0
            ) f
            OFFSET 0
        ) s
        OFFSET 0
    ) d
)
RETURNING l.key, l.value, l.token,
    -- For those who did not get it: the time left to the holder, or to whoever stands before them.
    CASE
        WHEN l.value <> '' THEN floor(extract(epoch FROM l.expire_time - clock_timestamp()) * 1000000)::bigint
        ELSE (l.waiters -> 0 ->> 'until')::bigint - floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    END AS remaining
