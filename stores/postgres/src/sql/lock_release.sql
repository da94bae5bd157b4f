-- Ends each lease: as holder, and as waiter too. What is free then goes to the first who waits and can be told, in the
-- same step; nothing is notified where nobody waits. The leases are one or a batch: lock_release_one.sql,
-- lock_release_batch.sql. A forced release notifies the holder as well.
--
-- Where nobody was granted anything, the commit does not wait for the disk or for replicas: a release that a crash undoes
-- keeps others waiting until the lease expires, and harms nobody. Whoever takes the lock next does wait, and what is
-- written before that is then on the disk as well. A grant that a crash undid would be a second holder: it waits.
--
-- One row for each lock comes back, with what it was before. The rows are read again by FOR NO KEY UPDATE after waiting
-- for their locks; what follows reads that copy and not the table, which this statement sees as it was before the wait.
--
-- OFFSET 0 and jsonpath: as in lock_acquire.sql.
UPDATE {table} l
SET value = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'id'::text WHEN d.let_go THEN '' ELSE d.value END,
    expire_time = CASE WHEN d.next IS NOT NULL
                           THEN d.now + least((d.next ->> 'expiry'::text)::bigint, 2000000)::double precision
                                        * interval '1 microsecond'
                       WHEN d.let_go THEN d.now ELSE d.expire_time END,
    token = CASE WHEN d.next IS NOT NULL THEN greatest(d.token + 1, {millis(d.now)})
                 ELSE d.token END,
    acquired_at = CASE WHEN d.next IS NOT NULL THEN d.now ELSE d.acquired_at END,
    inbox = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'inbox'::text WHEN d.let_go THEN NULL ELSE d.inbox END,
    waiters = CASE WHEN d.next IS NULL THEN d.rest WHEN pg_catalog.jsonb_array_length(d.rest) > 1 THEN d.rest - 0 END
FROM (
    SELECT n.*, {granted} AS granted
    FROM (
        SELECT r.*, CASE WHEN (r.let_go OR r.free) AND r.rest -> 0 ->> 'inbox'::text IS NOT NULL THEN r.rest -> 0
               END AS next
        FROM (
            -- Who waits on: NULL if nobody does. With a first one that is alive, and no other that ends here, all do.
            SELECT h.*, CASE
                       WHEN h.waiters IS NULL THEN NULL
                       WHEN h.let_go AND h.value = ALL (h.ids)
                            AND h.waiters -> 0 -> 'until'::text > h.asked -> 'now'::text THEN h.waiters
                       ELSE nullif(pg_catalog.jsonb_path_query_array(
                           h.waiters, '$[*] ? (@.until > $now && !(@.id == $ids[*]))', h.asked), '[]')
                   END AS rest
            FROM (
                SELECT t.*, t.value = '' OR t.expire_time <= t.now AS free,
                       t.value <> '' AND t.expire_time > t.now AND t.value = ANY (t.ids) AS let_go,
                       CASE WHEN t.waiters IS NOT NULL THEN pg_catalog.jsonb_build_object('ids', t.ids,
                           'now', {micros(t.now)}) END AS asked
                FROM (
                    {leases}
                    OFFSET 0
                ) t
                OFFSET 0
            ) h
            OFFSET 0
        ) r
        OFFSET 0
    ) n
) d
WHERE l.key = d.key
RETURNING d.key, d.value, d.token, d.acquired_at, d.let_go,
    {micros(d.expire_time - d.now)} AS remaining,
    -- Those of the ids who waited, as text; not searched for where there is only the holder's.
    CASE WHEN NOT (d.let_go AND d.value = ALL (d.ids)) THEN
        pg_catalog.jsonb_path_query_array(
            d.waiters, '$[*] ? (@.until > $now && @.id == $ids[*]).id', d.asked)::text END AS waited,
    d.next IS NOT NULL AND l.inbox IS DISTINCT FROM d.inbox AS woke,
    CASE WHEN d.next IS NOT NULL THEN pg_catalog.pg_notify(l.inbox, pg_catalog.concat_ws(' ', 'pushed',
        coalesce((d.next ->> 'attempt'::text)::bigint, 0), l.token,
        (d.asked ->> 'now'::text)::bigint - (d.next ->> 'asked'::text)::bigint,
        least((d.next ->> 'expiry'::text)::bigint, 2000000), l.value)) END AS told,
    {broken}
    CASE WHEN d.granted = 0 THEN pg_catalog.set_config('synchronous_commit', 'off', true) END AS commit
