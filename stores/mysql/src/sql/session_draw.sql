-- Draws tokens for locks that this session has. What the previous holder left is read before it is overwritten: a client
-- that did not release may believe for its `hold_us` that it holds the lock. If that was never granted, the one before may.
INSERT INTO {session}
    (k, name, token, holder, connection_id, acquired_at, hold_us, pending_us, process, pending_process)
SELECT k, name, {now} DIV 1000, holder, CONNECTION_ID(), {now}, {hold}, 0, {process}, ''
FROM (SELECT X'' AS k, X'' AS name, X'' AS holder FROM DUAL WHERE FALSE UNION ALL SELECT {rows}) fresh
ON DUPLICATE KEY UPDATE
    pending_process = CASE
        WHEN {session}.pending_us > 0 THEN {session}.pending_process
        WHEN {session}.hold_us > 0 THEN {session}.process
        ELSE ''
    END,
    pending_us = IF({session}.pending_us > 0, {session}.pending_us, {session}.hold_us),
    hold_us = VALUES(hold_us),
    process = VALUES(process),
    token = GREATEST({session}.token + 1, VALUES(token)),
    holder = VALUES(holder),
    connection_id = VALUES(connection_id),
    acquired_at = VALUES(acquired_at)
