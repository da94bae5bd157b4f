-- Deletes the rows of locks that were released while their rows were written.
DELETE FROM {session} s
WHERE s.lock_id IN (SELECT o.lock_id FROM {session} o WHERE o.lock_id = ANY ($1::text[]) FOR UPDATE SKIP LOCKED)
