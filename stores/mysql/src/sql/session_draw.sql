-- Draws tokens for locks that this session has. What the previous holder left is read before it is overwritten: a client
-- that did not release may believe for its `hold_us` that it holds the lock, and so may one before it.
INSERT INTO {session} (k, name, token, holder, connection_id, acquired_at, hold_us, pending_us)
SELECT * FROM ({rows}) fresh
ON DUPLICATE KEY UPDATE
    pending_us = GREATEST({session}.hold_us, {session}.pending_us),
    hold_us = VALUES(hold_us),
    token = GREATEST({session}.token + 1, VALUES(token)),
    holder = VALUES(holder),
    connection_id = VALUES(connection_id),
    acquired_at = VALUES(acquired_at)
