-- One atomic step of each pool that is asked about, for all verbs: acquire, renew, release, break. One row for each
-- question comes back.
--
-- Rows that exist are read again by FOR NO KEY UPDATE after waiting for their locks, and everything below reads that
-- copy. A pool that nobody used yet is inserted at the end; if somebody else was faster, nothing is written for it,
-- the answer says so, and the question is asked again.
--
-- A batch may be of a thousand questions: what belongs together is grouped and joined, not searched for row by row.
--
-- Times are microseconds since 1970 by this server's clock; durations are microseconds.
--
-- A forced release notifies the holders as well.
--
-- $11: those who hold or wait are sessions and last as long as these do. The inbox of each is the name of an advisory lock
-- that its session has; whose lock is gone is gone. Otherwise $11 is false, and they last until their time is over.
WITH ask AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::text[],
                $8::bigint[], $9::bigint[], $10::bytea[], $12::bigint[])
         WITH ORDINALITY
         AS u (key, verb, id, weight, capacity, expiry, inbox, waits, token, name, attempt, n)
    WHERE {limit}
), locked AS MATERIALIZED (
    SELECT p.*
    FROM {pool} p
    WHERE p.key = ANY ($1) AND {limit}
    ORDER BY p.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
), pool AS MATERIALIZED (
    SELECT k.key, k.name, k.asked_capacity, l.key IS NOT NULL AS known, l.capacity, coalesce(l.token, 0) AS token,
           l.holders, l.queue, {micros(pg_catalog.clock_timestamp())} AS now
    FROM (
        SELECT DISTINCT ON (a.key) a.key, a.name,
               CASE WHEN a.verb = 'acquire' THEN a.capacity END AS asked_capacity
        FROM ask a
        ORDER BY a.key, a.verb <> 'acquire', a.n
    ) k LEFT JOIN locked l ON l.key = k.key

-- Expired holders and waiters are gone, whatever the question.
), alive AS MATERIALIZED (
    SELECT 'dl_' || pg_catalog.lpad(pg_catalog.to_hex(l.classid::bigint), 8, '0')
                 || pg_catalog.lpad(pg_catalog.to_hex(l.objid::bigint), 8, '0') AS inbox
    FROM pg_catalog.pg_locks l
    WHERE $11 AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
), holder AS MATERIALIZED (
    SELECT p.key, h.*
    FROM pool p CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.jsonb_to_recordset(p.holders)
        AS (id text, weight integer, token bigint, since bigint, until bigint, inbox text)
    ) WITH ORDINALITY AS h (id, weight, token, since, until, inbox, place)
    WHERE h.until > p.now AND (NOT $11 OR h.inbox IN (SELECT a.inbox FROM alive a))
), waiter AS MATERIALIZED (
    SELECT p.key, q.*
    FROM pool p CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.jsonb_to_recordset(p.queue)
        AS (id text, weight integer, inbox text, expiry bigint, asked bigint, until bigint, attempt bigint)
    ) WITH ORDINALITY AS q (id, weight, inbox, expiry, asked, until, attempt, place)
    WHERE q.until > p.now AND (NOT $11 OR q.inbox IN (SELECT a.inbox FROM alive a))

-- A pool in use has the capacity of those who use it; one that is not has that of the first who asks.
), sized AS MATERIALIZED (
    SELECT p.key, p.name, p.now, p.token, p.known,
           CASE WHEN p.key IN (SELECT h.key FROM holder h) OR p.key IN (SELECT w.key FROM waiter w)
                THEN p.capacity
                ELSE coalesce(p.asked_capacity, p.capacity)
           END AS capacity
    FROM pool p
), fitting AS MATERIALIZED (
    SELECT a.*, s.now, s.capacity = a.capacity OR a.verb <> 'acquire' AS fits
    FROM ask a JOIN sized s ON s.key = a.key

-- What the questions change for those who hold already.
), kept AS MATERIALIZED (
    SELECT h.key, h.id, h.weight, h.since, h.inbox, h.place, f.n,
           coalesce(f.verb IN ('release', 'break'), false) AS leaves,
           greatest(h.token, f.token) AS token,
           -- Never earlier: a request that was sent earlier, or for a shorter time, may be applied later.
           CASE WHEN f.verb IN ('acquire', 'renew') THEN greatest(h.until, f.now + f.expiry) ELSE h.until END AS until
    FROM holder h LEFT JOIN fitting f ON f.key = h.key AND f.fits AND (f.id = h.id OR f.verb = 'break')

-- The line: who waited, in their order and refreshed if they ask again; then those who come and would wait; then
-- those who come and would not, the lightest first. An attempt that is applied after a later one of the same lock id
-- refreshes nothing.
), line AS MATERIALIZED (
    SELECT w.key, w.id, coalesce(f.weight, w.weight) AS weight, r.n,
           CASE WHEN r.fresh THEN coalesce(f.inbox, w.inbox) ELSE w.inbox END AS inbox,
           CASE WHEN r.fresh THEN coalesce(f.expiry, w.expiry) ELSE w.expiry END AS expiry,
           CASE WHEN r.fresh THEN f.attempt ELSE w.attempt END AS attempt,
           CASE WHEN r.fresh THEN f.now ELSE w.asked END AS asked,
           CASE WHEN r.fresh THEN f.now + f.waits ELSE w.until END AS until,
           w.place, w.until AS known_until
    FROM waiter w LEFT JOIN fitting f ON f.key = w.key AND f.id = w.id AND f.fits AND f.verb <> 'renew'
    CROSS JOIN LATERAL (SELECT f.n, f.n IS NOT NULL AND (f.attempt < w.attempt) IS NOT TRUE AS fresh) r
    WHERE f.verb IS DISTINCT FROM 'release'
    UNION ALL
    SELECT f.key, f.id, f.weight, f.n, f.inbox, f.expiry, f.attempt, f.now, f.now + f.waits,
           1000000 + CASE WHEN f.waits IS NULL THEN 1000000 + f.weight::bigint * 1000000 ELSE 0 END + f.n,
           f.now + f.waits
    FROM fitting f
    WHERE f.verb = 'acquire' AND f.fits
      AND NOT EXISTS (SELECT FROM holder h WHERE h.key = f.key AND h.id = f.id)
      AND NOT EXISTS (SELECT FROM waiter w WHERE w.key = f.key AND w.id = f.id)

-- The head of the line is served while it fits, strictly in order: a light one never passes a heavy one. Who is not
-- served and does not wait steps out, and then those behind may fit.
), used AS MATERIALIZED (
    SELECT s.key, s.name, s.known, s.now, s.capacity, greatest(s.token, k.token) AS token,
           coalesce(k.weight, 0) AS weight
    FROM sized s LEFT JOIN (
        SELECT k.key, pg_catalog.max(k.token) AS token, pg_catalog.sum(k.weight) FILTER (WHERE NOT k.leaves) AS weight
        FROM kept k
        GROUP BY k.key
    ) k ON k.key = s.key
), first_look AS MATERIALIZED (
    SELECT l.*, u.now, u.capacity, u.weight AS used, u.token AS last_token,
           u.weight + pg_catalog.sum(l.weight) OVER (PARTITION BY l.key ORDER BY l.place) <= u.capacity AS served
    FROM line l JOIN used u ON u.key = l.key
), served AS MATERIALIZED (
    SELECT f.*,
           f.used + pg_catalog.sum(f.weight) OVER ordered <= f.capacity AS granted,
           greatest(f.last_token + 1, f.now / 1000) + pg_catalog.row_number() OVER ordered - 1 AS token,
           CASE WHEN f.n IS NULL AND NOT $11 THEN least(f.expiry, 2000000) ELSE f.expiry END AS lasts
    FROM first_look f
    WHERE f.served OR f.until IS NOT NULL
    WINDOW ordered AS (PARTITION BY f.key ORDER BY f.place)

), after AS MATERIALIZED (
    SELECT k.key, k.place, k.id, k.weight, k.token, k.since, k.until, k.inbox FROM kept k WHERE NOT k.leaves
    UNION ALL
    SELECT s.key, 1000000000 + s.place, s.id, s.weight, s.token, s.now, s.now + s.lasts, s.inbox
    FROM served s WHERE s.granted
), changed AS MATERIALIZED (
    SELECT u.key, u.name, u.known, u.capacity, greatest(u.token, h.token) AS token, h.first_until,
           coalesce(h.holders, '[]') AS holders, coalesce(q.queue, '[]') AS queue,
           pg_catalog.to_timestamp(
               greatest(u.now, h.until, q.until)::double precision / 1000000::double precision) AS used_until
    FROM used u
    LEFT JOIN (
        SELECT a.key, pg_catalog.max(a.token) AS token, pg_catalog.max(a.until) AS until,
               pg_catalog.min(a.until) AS first_until,
               pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                   'id', a.id, 'weight', a.weight, 'token', a.token, 'since', a.since, 'until', a.until,
                   'inbox', a.inbox) ORDER BY a.place) AS holders
        FROM after a
        GROUP BY a.key
    ) h ON h.key = u.key
    LEFT JOIN (
        SELECT s.key, pg_catalog.max(s.until) AS until,
               pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                   'id', s.id, 'weight', s.weight, 'inbox', s.inbox, 'expiry', s.expiry, 'asked', s.asked,
                   'until', s.until, 'attempt', s.attempt) ORDER BY s.place) AS queue
        FROM served s
        WHERE NOT s.granted
        GROUP BY s.key
    ) q ON q.key = u.key
), updated AS (
    UPDATE {pool} p
    SET capacity = c.capacity, token = c.token, holders = c.holders, queue = c.queue, used_until = c.used_until
    FROM changed c
    WHERE p.key = c.key AND c.known
    RETURNING p.key
), inserted AS (
    INSERT INTO {pool} AS p (key, capacity, token, holders, queue, used_until, name)
    SELECT c.key, c.capacity, c.token, c.holders, c.queue, c.used_until, c.name
    FROM changed c
    WHERE NOT c.known AND c.holders <> '[]'
    ORDER BY c.key
    ON CONFLICT (key) DO NOTHING
    RETURNING p.key

-- Only who was served without asking is told: an answer tells the others. A session keeps what it was granted, whichever
-- attempt it was: its message names none.
), pushed AS MATERIALIZED (
    SELECT s.key, s.inbox,
           pg_catalog.pg_notify(s.inbox, CASE
               WHEN $11 THEN pg_catalog.concat_ws(' ', 'granted', s.token, s.now - s.asked, s.lasts, s.id)
               ELSE pg_catalog.concat_ws(' ', 'pushed', coalesce(s.attempt, 0), s.token, s.now - s.asked, s.lasts, s.id)
           END) AS told
    FROM served s
    WHERE s.granted AND s.n IS NULL AND s.inbox IS NOT NULL
), told AS MATERIALIZED (
    -- Counted, because rows that nobody reads are not made, and their messages not sent.
    SELECT pg_catalog.count(p.told) AS messages FROM (
        SELECT p.told FROM pushed p
        {broken}
    ) p
)
SELECT f.n, f.fits, c.capacity,
       c.known OR NOT f.fits OR f.verb <> 'acquire' OR f.key IN (SELECT i.key FROM inserted i) AS written,
       coalesce(k.token, g.token) AS token,
       k.id IS NOT NULL AS was_holder, w.id IS NOT NULL AS was_waiter,
       EXISTS (SELECT FROM pushed p WHERE p.key = f.key AND p.inbox IS DISTINCT FROM coalesce(k.inbox, w.inbox)) AS woke,
       -- When it is worth asking again: at the end of the first who holds or stands before.
       CASE WHEN f.verb = 'acquire' AND k.id IS NULL AND g.id IS NULL THEN least(
           c.first_until,
           (SELECT pg_catalog.min(l.known_until) FROM served l
            WHERE l.key = f.key AND NOT l.granted AND l.id <> f.id
              AND l.place < coalesce((SELECT m.place FROM line m WHERE m.key = f.key AND m.id = f.id), 0))
       ) - f.now END AS remaining,
       k.id AS holder_id, k.weight AS holder_weight, k.since AS holder_since, k.until - f.now AS holder_remaining,
       -- The sessions that are in the way.
       CASE WHEN $11 THEN (
           SELECT pg_catalog.array_agg(i.inbox)
           FROM (SELECT a.inbox FROM after a WHERE a.key = f.key
                 UNION SELECT q.inbox FROM served q WHERE q.key = f.key AND NOT q.granted AND q.id <> f.id) i)
       END AS holding
FROM told CROSS JOIN fitting f
JOIN changed c ON c.key = f.key
LEFT JOIN kept k ON k.n = f.n
LEFT JOIN waiter w ON w.key = f.key AND w.id = f.id
LEFT JOIN served g ON g.n = f.n AND g.granted
ORDER BY f.n
