-- Ends each lease, as holder and as waiter. A lock that is free then goes to the first waiter that can be notified, in the same
-- step. Without waiters no notification is sent. The leases are one or a batch: lock_release_one.sql, lock_release_batch.sql.
-- A forced release notifies the holder as well. {window}: how long a handed-off lock lasts unless it is renewed.
--
-- If no lock was handed off, the commit does not wait for the disk or for replicas: if a crash undoes the release, other
-- clients wait until the lease expires, and no harm is done. The next acquisition does wait, and everything written before it
-- is then on the disk as well. A handoff that a crash undid would make a second holder, so it waits.
--
-- Returns one row for each lock, with its state before. FOR NO KEY UPDATE reads the rows again after waiting for their row
-- locks; what follows reads that copy and not the table, which this statement sees as it was before the wait.
--
-- OFFSET 0 and jsonpath: as in lock_acquire.sql.
UPDATE {table} l
SET value = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'id'::text WHEN d.released THEN '' ELSE d.value END,
    expire_time = CASE WHEN d.next IS NOT NULL
                           THEN d.now + least((d.next ->> 'expiry'::text)::bigint, {window})::double precision
                                        * interval '1 microsecond'
                       WHEN d.released THEN d.now ELSE d.expire_time END,
    token = CASE WHEN d.next IS NOT NULL THEN greatest(d.token + 1, {millis(d.now)})
                 ELSE d.token END,
    acquired_at = CASE WHEN d.next IS NOT NULL THEN d.now ELSE d.acquired_at END,
    inbox = CASE WHEN d.next IS NOT NULL THEN d.next ->> 'inbox'::text WHEN d.released THEN NULL ELSE d.inbox END,
    waiters = CASE WHEN d.next IS NULL THEN d.rest WHEN pg_catalog.jsonb_array_length(d.rest) > 1 THEN d.rest - 0 END
FROM (
    SELECT n.*, {granted} AS granted
    FROM (
        SELECT r.*, CASE WHEN (r.released OR r.free) AND r.rest -> 0 ->> 'inbox'::text IS NOT NULL THEN r.rest -> 0
               END AS next
        FROM (
            -- The waiters that remain, NULL if none. All remain if the first is alive and only the holder's lease ends here.
            SELECT h.*, CASE
                       WHEN h.waiters IS NULL THEN NULL
                       WHEN h.released AND h.value = ALL (h.ids)
                            AND h.waiters -> 0 -> 'until'::text > h.vars -> 'now'::text THEN h.waiters
                       ELSE nullif(pg_catalog.jsonb_path_query_array(
                           h.waiters, '$[*] ? (@.until > $now && !(@.id == $ids[*]))', h.vars), '[]')
                   END AS rest
            FROM (
                SELECT t.*, t.value = '' OR t.expire_time <= t.now AS free,
                       t.value <> '' AND t.expire_time > t.now AND t.value = ANY (t.ids) AS released,
                       CASE WHEN t.waiters IS NOT NULL THEN pg_catalog.jsonb_build_object('ids', t.ids,
                           'now', {micros(t.now)}) END AS vars
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
RETURNING d.key, d.value, d.token, d.acquired_at, d.released,
    {micros(d.expire_time - d.now)} AS remaining,
    -- The ids that were waiting, as text. Not searched if the only id is the holder's.
    CASE WHEN NOT (d.released AND d.value = ALL (d.ids)) THEN
        pg_catalog.jsonb_path_query_array(
            d.waiters, '$[*] ? (@.until > $now && @.id == $ids[*]).id', d.vars)::text END AS withdrawn,
    d.next IS NOT NULL AND l.inbox IS DISTINCT FROM d.inbox AS woke,
    CASE WHEN d.next IS NOT NULL THEN pg_catalog.pg_notify(l.inbox, pg_catalog.concat_ws(' ', 'pushed',
        coalesce((d.next ->> 'attempt'::text)::bigint, 0), l.token,
        (d.vars ->> 'now'::text)::bigint - (d.next ->> 'asked'::text)::bigint,
        least((d.next ->> 'expiry'::text)::bigint, {window}), l.value)) END AS notified,
    {broken}
    CASE WHEN d.granted = 0 THEN pg_catalog.set_config('synchronous_commit', 'off', true) END AS commit
