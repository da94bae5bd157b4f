-- A batch on pool rows, one atomic step for each pool, for all verbs: acquire, renew, release, break. Returns one row for each
-- item of the batch.
--
-- FOR NO KEY UPDATE reads existing rows again after waiting for their row locks, and every decision is made on that copy. A new
-- pool is inserted at the end. If another session inserted it first, the batch writes nothing for it and says so, and the
-- client sends the item again.
--
-- A batch may have a thousand items: related rows are grouped and joined, not searched row by row.
--
-- Times are microseconds since 1970 by this server's clock; durations are microseconds. $12: how long a handed-off permit
-- lasts unless it is renewed.
--
-- A forced release notifies the holders as well.
--
-- {sessions}: true where holders and waiters are sessions and last as long as those do. The inbox of an entry is then named
-- after the advisory lock of its session, and an entry whose lock is gone has ended. Otherwise entries last until they expire.
WITH item AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::text[],
                $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[], $13::boolean[])
         WITH ORDINALITY
         AS u (key, verb, id, weight, capacity, expiry, inbox, waits, token, name, attempt, resizes, n)
    WHERE {limit}
), locked AS MATERIALIZED (
    SELECT p.*
    FROM {pool} p
    WHERE p.key = ANY ($1) AND {limit}
    ORDER BY p.key  -- one order for all batches: they cannot deadlock
    FOR NO KEY UPDATE
), pool AS MATERIALIZED (
    SELECT k.key, k.name, k.claimed_capacity, k.resizes, l.key IS NOT NULL AS known, l.capacity, coalesce(l.token, 0) AS token,
           l.holders, l.queue, {micros(pg_catalog.clock_timestamp())} AS now
    FROM (
        SELECT DISTINCT ON (a.key) a.key, a.name,
               CASE WHEN a.verb = 'acquire' THEN a.capacity END AS claimed_capacity, a.resizes
        FROM item a
        ORDER BY a.key, a.verb <> 'acquire', NOT a.resizes, a.n
    ) k LEFT JOIN locked l ON l.key = k.key

-- Expired holders and waiters are dropped, whatever the verb.
), alive AS MATERIALIZED (
    {live_sessions}
), holder AS MATERIALIZED (
    SELECT p.key, h.*
    FROM pool p CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.jsonb_to_recordset(p.holders)
        AS (id text, weight integer, token bigint, since bigint, until bigint, inbox text)
    ) WITH ORDINALITY AS h (id, weight, token, since, until, inbox, place)
    WHERE h.until > p.now AND (NOT {sessions} OR h.inbox IN (SELECT a.inbox FROM alive a))
), waiter AS MATERIALIZED (
    SELECT p.key, q.*
    FROM pool p CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.jsonb_to_recordset(p.queue)
        AS (id text, weight integer, inbox text, expiry bigint, asked bigint, until bigint, attempt bigint)
    ) WITH ORDINALITY AS q (id, weight, inbox, expiry, asked, until, attempt, place)
    WHERE q.until > p.now AND (NOT {sessions} OR q.inbox IN (SELECT a.inbox FROM alive a))

-- A pool in use keeps its capacity, unless a claim resizes it; an unused one takes the capacity of the first claim.
), sized AS MATERIALIZED (
    SELECT p.key, p.name, p.now, p.token, p.known,
           CASE WHEN NOT p.resizes
                     AND (p.key IN (SELECT h.key FROM holder h) OR p.key IN (SELECT w.key FROM waiter w))
                THEN p.capacity
                ELSE coalesce(p.claimed_capacity, p.capacity)
           END AS capacity
    FROM pool p
), fitting AS MATERIALIZED (
    SELECT a.*, s.now, s.capacity = a.capacity OR a.resizes OR a.verb <> 'acquire' AS fits
    FROM item a JOIN sized s ON s.key = a.key

-- What the items change for the present holders.
), kept AS MATERIALIZED (
    SELECT h.key, h.id, h.weight, h.since, h.inbox, h.place, f.n,
           coalesce(f.verb IN ('release', 'break'), false) AS released,
           greatest(h.token, f.token) AS token,
           -- Never earlier: a request that was sent earlier, or for a shorter time, may be applied later.
           CASE WHEN f.verb IN ('acquire', 'renew') THEN greatest(h.until, f.now + f.expiry) ELSE h.until END AS until
    FROM holder h LEFT JOIN fitting f ON f.key = h.key AND f.fits AND (f.id = h.id OR f.verb = 'break')

-- The wait queue: first the present waiters in their order, refreshed by repeated claims; then new claims that wait; then new
-- claims that do not, the lightest first. An attempt that is applied after a later one of the same lock id refreshes nothing.
), wait_queue AS MATERIALIZED (
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

-- The queue head is granted while it fits, strictly in order: a light claim never overtakes a heavy one. A claim that is not
-- granted and does not wait leaves the queue, and the ones behind it may then fit.
), used AS MATERIALIZED (
    SELECT s.key, s.name, s.known, s.now, s.capacity, greatest(s.token, k.token) AS token,
           coalesce(k.weight, 0) AS weight
    FROM sized s LEFT JOIN (
        SELECT k.key, pg_catalog.max(k.token) AS token, pg_catalog.sum(k.weight) FILTER (WHERE NOT k.released) AS weight
        FROM kept k
        GROUP BY k.key
    ) k ON k.key = s.key
), first_pass AS MATERIALIZED (
    SELECT l.*, u.now, u.capacity, u.weight AS used, u.token AS last_token,
           u.weight + pg_catalog.sum(l.weight) OVER (PARTITION BY l.key ORDER BY l.place) <= u.capacity AS fits_now
    FROM wait_queue l JOIN used u ON u.key = l.key
), queued AS MATERIALIZED (
    SELECT f.*,
           f.used + pg_catalog.sum(f.weight) OVER ordered <= f.capacity AS granted,
           greatest(f.last_token + 1, f.now / 1000) + pg_catalog.row_number() OVER ordered - 1 AS token,
           CASE WHEN f.n IS NULL AND NOT {sessions} THEN least(f.expiry, $12) ELSE f.expiry END AS lasts
    FROM first_pass f
    WHERE f.fits_now OR f.until IS NOT NULL
    WINDOW ordered AS (PARTITION BY f.key ORDER BY f.place)

), after AS MATERIALIZED (
    SELECT k.key, k.place, k.id, k.weight, k.token, k.since, k.until, k.inbox FROM kept k WHERE NOT k.released
    UNION ALL
    SELECT s.key, 1000000000 + s.place, s.id, s.weight, s.token, s.now, s.now + s.lasts, s.inbox
    FROM queued s WHERE s.granted
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
        FROM queued s
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

-- A waiter that is granted without an item in this batch is notified; the others learn of it from the reply. A session keeps
-- what it was granted, whichever attempt it was, so its message names none.
), pushed AS MATERIALIZED (
    SELECT s.key, s.inbox,
           pg_catalog.pg_notify(s.inbox, CASE
               WHEN {sessions} THEN pg_catalog.concat_ws(' ', 'granted', s.token, s.now - s.asked, s.lasts, s.id)
               ELSE pg_catalog.concat_ws(' ', 'pushed', coalesce(s.attempt, 0), s.token, s.now - s.asked, s.lasts, s.id)
           END) AS notified
    FROM queued s
    WHERE s.granted AND s.n IS NULL AND s.inbox IS NOT NULL
), notified AS MATERIALIZED (
    -- Counted, because PostgreSQL does not evaluate rows that are never read: their messages would not be sent.
    SELECT pg_catalog.count(p.notified) AS messages FROM (
        SELECT p.notified FROM pushed p
        {broken}
    ) p
)
SELECT f.n, f.fits, c.capacity,
       c.known OR NOT f.fits OR f.verb <> 'acquire' OR f.key IN (SELECT i.key FROM inserted i) AS written,
       coalesce(k.token, g.token) AS token,
       k.id IS NOT NULL AS was_holder, w.id IS NOT NULL AS was_waiter,
       EXISTS (SELECT FROM pushed p WHERE p.key = f.key AND p.inbox IS DISTINCT FROM coalesce(k.inbox, w.inbox)) AS woke,
       -- When a retry makes sense: at the first expiry of a holder or of a waiter ahead.
       CASE WHEN f.verb = 'acquire' AND k.id IS NULL AND g.id IS NULL THEN least(
           c.first_until,
           (SELECT pg_catalog.min(l.known_until) FROM queued l
            WHERE l.key = f.key AND NOT l.granted AND l.id <> f.id
              AND l.place < coalesce((SELECT m.place FROM wait_queue m WHERE m.key = f.key AND m.id = f.id), 0))
       ) - f.now END AS remaining,
       k.id AS holder_id, k.weight AS holder_weight, k.since AS holder_since, k.until - f.now AS holder_remaining,
       -- The sessions that block the claim.
       CASE WHEN {sessions} THEN (
           SELECT pg_catalog.array_agg(i.inbox)
           FROM (SELECT a.inbox FROM after a WHERE a.key = f.key
                 UNION SELECT q.inbox FROM queued q WHERE q.key = f.key AND NOT q.granted AND q.id <> f.id) i)
       END AS blocking
FROM notified CROSS JOIN fitting f
JOIN changed c ON c.key = f.key
LEFT JOIN kept k ON k.n = f.n
LEFT JOIN waiter w ON w.key = f.key AND w.id = f.id
LEFT JOIN queued g ON g.n = f.n AND g.granted
ORDER BY f.n
