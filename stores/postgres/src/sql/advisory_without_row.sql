-- Locks that sessions of this library hold in exclusive mode and that have no row: the row of a mutex is written some
-- milliseconds after the grant. The session lock of each session never has one. $1 and $2: only this key.
WITH advisory AS MATERIALIZED (
    {advisory_locks}
), shown AS MATERIALIZED (
    SELECT s.key, s.pair, own.pid
    FROM {session} s
    JOIN advisory own ON own.key = s.session AND NOT own.pair AND own.granted AND own.mode = 'ExclusiveLock'
    WHERE s.token IS NOT NULL  -- NULL: the row of a waiter, which becomes that of a holder some milliseconds after the grant
)
SELECT a.pid, a.key, a.pair
FROM advisory a
JOIN advisory mark ON mark.pid = a.pid AND mark.key = {session_mark} AND NOT mark.pair AND mark.mode = 'ShareLock'
LEFT JOIN shown h ON h.pid = a.pid AND h.key = a.key AND h.pair = a.pair
WHERE a.granted AND a.mode = 'ExclusiveLock' AND h.pid IS NULL
  AND ($1::bigint IS NULL OR a.key = $1 AND a.pair = $2)
