-- Ends each lease: as holder, and as waiter too. An id that is NULL stands for whoever holds the lock. What is free
-- then goes to the first who waits and can be told, in the same step; nothing is notified where nobody waits.
--
-- Where nobody was granted anything, the commit does not wait for the disk or for replicas: a release that a crash undoes
-- keeps others waiting until the lease expires, and harms nobody. Whoever takes the lock next does wait, and what is
-- written before that is then on the disk as well. A grant that a crash undid would be a second holder: it waits.
--
-- One row for each lease comes back. The rows are read again by FOR NO KEY UPDATE after waiting for their locks;
-- what follows reads that copy and not the table, which this statement sees as it was before the wait.
WITH lease AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (key, id, n)
), asked AS MATERIALIZED (
    -- By key, so that a batch is joined once and not searched again for each of its rows.
    SELECT u.key, coalesce(array_agg(u.id) FILTER (WHERE u.id IS NOT NULL), '{}') AS ids, bool_or(u.id IS NULL) AS whoever
    FROM lease u
    GROUP BY u.key
), locked AS MATERIALIZED (
    SELECT l.key, l.value, l.expire_time, l.token, l.acquired_at, l.inbox, l.waiters
    FROM {table} l
    WHERE l.key = ANY ($1)
    ORDER BY l.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
), decided AS MATERIALIZED (
    SELECT r.*, n.next, least((n.next ->> 'expiry')::bigint, 2000000) AS grant_window,
           CASE WHEN n.next IS NOT NULL THEN greatest(r.token + 1, r.micros / 1000) ELSE r.token END AS new_token
    FROM (
        -- Who waits on: NULL if nobody does. With a first one that is alive, and no other waiter that ends here, all do.
        SELECT h.*, CASE
                   WHEN h.waiters IS NULL THEN NULL
                   WHEN h.let_go AND NOT h.others AND (h.waiters -> 0 ->> 'until')::bigint > h.micros THEN h.waiters
                   ELSE (
                       SELECT jsonb_agg(w.entry ORDER BY w.place)
                       FROM jsonb_array_elements(h.waiters) WITH ORDINALITY AS w (entry, place)
                       WHERE (w.entry ->> 'until')::bigint > h.micros AND w.entry ->> 'id' <> ALL (h.ids))
               END AS rest
        FROM (
            SELECT t.*, t.held AND (t.whoever OR t.value = ANY (t.ids)) AS let_go,
                   t.value <> ANY (t.ids) AS others
            FROM (
                SELECT l.*, a.ids, a.whoever, c.now, floor(extract(epoch FROM c.now) * 1000000)::bigint AS micros,
                       l.value <> '' AND l.expire_time > c.now AS held
                FROM locked l JOIN asked a ON a.key = l.key
                     CROSS JOIN LATERAL (SELECT clock_timestamp() AS now, l.key OFFSET 0) c
                OFFSET 0
            ) t
            OFFSET 0
        ) h
        OFFSET 0
    ) r CROSS JOIN LATERAL (
        SELECT CASE WHEN (r.let_go OR NOT r.held) AND r.rest -> 0 ->> 'inbox' IS NOT NULL THEN r.rest -> 0 END AS next
        OFFSET 0
    ) n
), written AS (
    UPDATE {table} l
    SET value = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'id' WHEN d.let_go THEN '' ELSE d.value END,
        expire_time = CASE WHEN d.next IS NOT NULL THEN d.now + d.grant_window * interval '1 microsecond'
                           WHEN d.let_go THEN d.now ELSE d.expire_time END,
        token = d.new_token,
        acquired_at = CASE WHEN d.next IS NOT NULL THEN d.now ELSE d.acquired_at END,
        inbox = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'inbox' WHEN d.let_go THEN NULL ELSE d.inbox END,
        waiters = CASE WHEN d.next IS NULL THEN d.rest WHEN jsonb_array_length(d.rest) > 1 THEN d.rest - 0 END
    FROM decided d
    WHERE l.key = d.key AND (d.let_go OR d.next IS NOT NULL OR d.rest IS DISTINCT FROM d.waiters)
), told AS MATERIALIZED (
    SELECT count(pg_notify(d.next ->> 'inbox', concat_ws(' ', 'granted', d.new_token,
               d.micros - (d.next ->> 'asked')::bigint, d.grant_window, d.next ->> 'id'))) AS messages
    FROM decided d
    WHERE d.next IS NOT NULL
)
SELECT lease.n, d.let_go AND (lease.id = d.value OR lease.id IS NULL) AS was_holder,
       d.waiters IS NOT NULL AND lease.id IS DISTINCT FROM d.value AND EXISTS (
           SELECT FROM jsonb_array_elements(d.waiters) AS w (entry)
           WHERE w.entry ->> 'id' = lease.id AND (w.entry ->> 'until')::bigint > d.micros) AS was_waiter,
       d.next IS NOT NULL AND d.next ->> 'inbox' IS DISTINCT FROM d.inbox AS woke,
       d.value, d.token, d.acquired_at,
       floor(extract(epoch FROM d.expire_time - d.now) * 1000000)::bigint AS remaining,
       CASE WHEN told.messages = 0 THEN set_config('synchronous_commit', 'off', true) END AS commit
FROM lease JOIN decided d ON d.key = lease.key CROSS JOIN told
