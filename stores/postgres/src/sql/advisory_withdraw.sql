-- Somebody does not wait any more.
DELETE FROM {session} s WHERE s.lock_id = $1
