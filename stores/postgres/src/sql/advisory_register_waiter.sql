-- Shows a waiter to `inspect`, before it waits.
INSERT INTO {session} (lock_id, session, key, pair, shared, kind, name, weight, capacity)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
