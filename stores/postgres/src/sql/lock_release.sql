-- Ends each lease: as holder, and as waiter too. An id that is NULL stands for whoever holds the lock. What is free
-- then goes to the first who waits and can be told, in the same step; nothing is notified where nobody waits.
--
-- One row for each lease comes back. The rows are read again by FOR NO KEY UPDATE after waiting for their locks;
-- what follows reads that copy and not the table, which this statement sees as it was before the wait.
WITH lease AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (key, id, n)
), locked AS MATERIALIZED (
    SELECT l.*
    FROM {table} l
    WHERE l.key = ANY ($1)
    ORDER BY l.key  -- one order for all: batches cannot deadlock
    FOR NO KEY UPDATE
), timed AS MATERIALIZED (
    SELECT l.*, t.now, floor(extract(epoch FROM t.now) * 1000000)::bigint AS micros,
           l.value <> '' AND l.expire_time > t.now AS held
    FROM locked l CROSS JOIN LATERAL (SELECT clock_timestamp() AS now, l.key OFFSET 0) t
), ended AS MATERIALIZED (
    -- Who held it and lets go, and who waits on: NULL if nobody does.
    SELECT t.*,
           t.held AND EXISTS (
               SELECT FROM lease WHERE lease.key = t.key AND (lease.id = t.value OR lease.id IS NULL)) AS let_go,
           CASE WHEN t.waiters IS NOT NULL THEN (
               SELECT jsonb_agg(w.entry ORDER BY w.place)
               FROM jsonb_array_elements(t.waiters) WITH ORDINALITY AS w (entry, place)
               WHERE (w.entry ->> 'until')::bigint > t.micros AND NOT EXISTS (
                   SELECT FROM lease WHERE lease.key = t.key AND lease.id = w.entry ->> 'id'))
           END AS rest
    FROM timed t
), passed_on AS MATERIALIZED (
    SELECT e.*, n.next, least((n.next ->> 'expiry')::bigint, 2000000) AS grant_window,
           CASE WHEN n.next IS NOT NULL
                THEN greatest(e.token + 1, floor(extract(epoch FROM e.now) * 1000)::bigint)
                ELSE e.token END AS new_token
    FROM ended e CROSS JOIN LATERAL (
        SELECT CASE WHEN (e.let_go OR NOT e.held) AND e.rest -> 0 ->> 'inbox' IS NOT NULL
                    THEN e.rest -> 0 END AS next
    ) n
), written AS (
    UPDATE {table} l
    SET value = CASE WHEN p.next IS NOT NULL THEN p.next ->> 'id' WHEN p.let_go THEN '' ELSE p.value END,
        expire_time = CASE WHEN p.next IS NOT NULL THEN p.now + p.grant_window * interval '1 microsecond'
                           WHEN p.let_go THEN p.now ELSE p.expire_time END,
        token = p.new_token,
        acquired_at = CASE WHEN p.next IS NOT NULL THEN p.now ELSE p.acquired_at END,
        inbox = CASE WHEN p.next IS NOT NULL THEN p.next ->> 'inbox' WHEN p.let_go THEN NULL ELSE p.inbox END,
        waiters = CASE WHEN p.next IS NULL THEN p.rest
                       WHEN jsonb_array_length(p.rest) > 1 THEN p.rest - 0 END
    FROM passed_on p
    WHERE l.key = p.key AND (p.let_go OR p.next IS NOT NULL OR p.rest IS DISTINCT FROM p.waiters)
), told AS MATERIALIZED (
    SELECT count(pg_notify(p.next ->> 'inbox', concat_ws(' ', 'granted', p.new_token,
               p.micros - (p.next ->> 'asked')::bigint, p.grant_window, p.next ->> 'id'))) AS messages
    FROM passed_on p
    WHERE p.next IS NOT NULL
)
SELECT lease.n, p.let_go AND (lease.id = p.value OR lease.id IS NULL) AS was_holder,
       EXISTS (
           SELECT FROM jsonb_array_elements(p.waiters) AS w (entry)
           WHERE w.entry ->> 'id' = lease.id AND (w.entry ->> 'until')::bigint > p.micros) AS was_waiter,
       p.next IS NOT NULL AND p.next ->> 'inbox' IS DISTINCT FROM p.inbox AS woke,
       p.value, p.token, p.acquired_at,
       floor(extract(epoch FROM p.expire_time - p.now) * 1000000)::bigint AS remaining
FROM lease JOIN passed_on p ON p.key = lease.key CROSS JOIN told
