-- The numbers of those claims whose mutex has a wait queue of at least so many waiters ($3), and no entry of their lock id. A plain
-- read: it waits for no row lock, and nothing waits for the disk.
--
-- If the lease has just ended, a waiter of the queue takes the lock: a thousand claims at that moment would only be in its way.
SELECT t.n
FROM (
    SELECT c.*, pg_catalog.jsonb_build_object('id', c.id, 'now', {micros(c.now)}) AS vars
    FROM (
        SELECT u.key, u.id, u.most, u.n, pg_catalog.clock_timestamp() AS now
        FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u (key, id, most, n)
        OFFSET 0
    ) c
    OFFSET 0
) t JOIN {table} l ON l.key = t.key
WHERE l.value <> t.id AND l.expire_time > t.now - interval '1 second'
  AND pg_catalog.jsonb_array_length(pg_catalog.jsonb_path_query_array(
          l.waiters, '$[*] ? (@.until > $now)', t.vars)) >= t.most
  -- A waiter with an entry keeps it alive by its next attempt.
  AND NOT pg_catalog.jsonb_path_exists(l.waiters, '$[*] ? (@.id == $id)', t.vars)
