-- The lease table: one row for each mutex, with the columns that other programs know: key, value, expire_time.
-- A free row has an empty value. It is kept for the retention time, because it has the last fencing token.
CREATE TABLE IF NOT EXISTS {table} (
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {table_pk} PRIMARY KEY,
    value       pg_catalog.text NOT NULL,              -- the lock id of the holder
    expire_time timestamp with time zone NOT NULL,     -- by this server's clock
    token       bigint NOT NULL DEFAULT {millis(pg_catalog.clock_timestamp())},
    acquired_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    inbox       pg_catalog.text,                       -- the channel that wakes the holder's process
    waits       bigint,                                -- these two pass parameters of a claim to the statement that
    in_turn     boolean,                               -- decides, and its answer; in a stored row they have no meaning
    waiters     pg_catalog.jsonb,                      -- the wait queue: [{id, inbox, expiry, attempt, asked, until}]
    name        pg_catalog.bytea                       -- the name, where the key has only its hash
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);

-- The pool table: one row for each semaphore, reader-writer lock and fair queue.
