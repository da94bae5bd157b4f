-- Acquires each lock that is free. Returns one row for each claim: the holder of the lock and the time left to it.
-- The claims are one or a batch: lock_acquire_one.sql, lock_acquire_batch.sql. {waits} and {attempt} stand for the
-- time-to-live and the attempt number of a claim that waits.
--
-- Only the row under ON CONFLICT DO UPDATE is read again after waiting for its row lock, so every decision is made on that
-- row. `now` is taken before the wait, which is safe: a lease that seems to live a little longer is not granted to another
-- client, and a lease that is granted ends a little earlier, but never before the time that the client counts from sending
-- its request.
--
-- OFFSET 0 keeps a subquery whole: PostgreSQL would otherwise evaluate its expressions once for each use. Every node of a
-- plan is set up for each call, needed or not, and that is most of what a lone lock costs the server. So waiters are searched
-- with jsonpath, which is an expression, and not with subqueries. Without waiters such an expression is NULL.
INSERT INTO {table} AS l (key, value, expire_time, token, acquired_at, inbox, waits, in_turn, name)
SELECT c.key, c.id, c.now + c.expiry::double precision * interval '1 microsecond',
       {millis(c.now)}, c.now, c.inbox, c.waits, c.in_turn, c.name
FROM (
    {claims}
) c
ON CONFLICT (key) DO UPDATE
SET (value, expire_time, token, acquired_at, inbox, in_turn, waiters) = (
    SELECT
        CASE WHEN d.granted THEN EXCLUDED.value WHEN d.free THEN '' ELSE l.value END,
        -- A repeated claim of the holder never shortens its lease: `now` may be older than the row.
        CASE WHEN d.granted THEN EXCLUDED.expire_time WHEN d.mine THEN greatest(l.expire_time, EXCLUDED.expire_time)
             ELSE l.expire_time END,
        CASE WHEN d.granted THEN greatest(l.token + 1, EXCLUDED.token) ELSE l.token END,
        CASE WHEN d.granted THEN EXCLUDED.acquired_at ELSE l.acquired_at END,
        CASE WHEN d.granted THEN EXCLUDED.inbox ELSE l.inbox END,
        d.no_room,
        CASE
            WHEN l.waiters IS NULL THEN '[]' || d.entry
            WHEN d.entry IS NULL THEN CASE
                WHEN d.behind OR d.known IS NOT NULL THEN nullif(pg_catalog.jsonb_path_query_array(
                    l.waiters, '$[*] ? (@.until > $now && @.id != $id)', d.vars), '[]')
                ELSE l.waiters END
            -- A repeated claim keeps its place in the queue. The entry is replaced as text: jsonb has one text for a value,
            -- and no object begins inside a string, where quotes are escaped.
            WHEN d.known IS NOT NULL THEN pg_catalog.replace(
                CASE WHEN d.behind THEN
                    pg_catalog.jsonb_path_query_array(l.waiters, '$[*] ? (@.until > $now || @.id == $id)', d.vars)
                ELSE l.waiters END::text, d.known::text, d.entry::text)::jsonb
            -- Expired waiters are dropped where it matters: before the queue head, and from a full queue.
            WHEN d.behind OR pg_catalog.jsonb_array_length(l.waiters) >= {most} THEN
                pg_catalog.jsonb_path_query_array(l.waiters, '$[*] ? (@.until > $now)', d.vars) || d.entry
            ELSE l.waiters || d.entry
        END
    FROM (
        -- `known` is the present entry of the claim, `entry` the new one. A claim that need not wait gets none, and neither does
        -- a new waiter that finds no room. An attempt that is applied after a later one of the same lock id changes nothing.
        SELECT s.*, s.free AND NOT s.behind AS granted,
               CASE
                   WHEN s.mine OR (s.free AND NOT s.behind) OR EXCLUDED.waits IS NULL OR s.no_room THEN NULL
                   WHEN (s.known ->> 'attempt'::text)::bigint > {attempt} THEN s.known
                   ELSE pg_catalog.jsonb_build_object(
                       'id', EXCLUDED.value, 'inbox', EXCLUDED.inbox,
                       'expiry', {micros(EXCLUDED.expire_time - EXCLUDED.acquired_at)},
                       'attempt', {attempt}, 'asked', s.now, 'until', s.now + {waits})
               END AS entry
        FROM (
            SELECT t.*, NOT t.free AND l.value = EXCLUDED.value AS mine,
                   pg_catalog.jsonb_path_query_first(l.waiters, '$[*] ? (@.id == $id)', t.vars) AS known,
                   CASE WHEN pg_catalog.jsonb_array_length(l.waiters) >= {most} THEN
                       NOT pg_catalog.jsonb_path_exists(l.waiters, '$[*] ? (@.id == $id)', t.vars)
                       AND pg_catalog.jsonb_array_length(pg_catalog.jsonb_path_query_array(
                               l.waiters, '$[*] ? (@.until > $now)', t.vars)) >= {most} END AS no_room,
                   t.free AND EXCLUDED.in_turn AND coalesce(pg_catalog.jsonb_path_query_first(
                       l.waiters, '$[*] ? (@.until > $now)', t.vars) ->> 'id'::text <> EXCLUDED.value, false) AS behind
            FROM (
                SELECT l.value = '' OR l.expire_time <= EXCLUDED.acquired_at AS free,
                       {micros(EXCLUDED.acquired_at)} AS now,
                       CASE WHEN l.waiters IS NOT NULL THEN pg_catalog.jsonb_build_object('id', EXCLUDED.value,
                           'now', {micros(EXCLUDED.acquired_at)}) END AS vars
                OFFSET 0
            ) t
            OFFSET 0
        ) s
        OFFSET 0
    ) d
)
RETURNING l.key, l.value, l.token, l.in_turn AS no_room,{commit}
    -- For claims that were not granted: the time left to the holder, or to the queue head.
    CASE
        WHEN l.value <> '' THEN {micros(l.expire_time - pg_catalog.clock_timestamp())}
        ELSE (l.waiters -> 0 ->> 'until'::text)::bigint - {micros(pg_catalog.clock_timestamp())}
    END AS remaining
