-- Deletes the row of a waiter that withdrew.
DELETE FROM {session} s
WHERE s.lock_id = (SELECT o.lock_id FROM {session} o WHERE o.lock_id = $1 FOR UPDATE SKIP LOCKED)
