-- The lease table: one row for each mutex, in the columns that other programs know: key, value, expire_time.
-- A row that nobody holds has an empty value. It stays for a while, because it remembers the last fencing token.
CREATE TABLE IF NOT EXISTS {table} (
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {table_pk} PRIMARY KEY,
    value       pg_catalog.text NOT NULL,              -- the lock id of the holder
    expire_time timestamp with time zone NOT NULL,     -- by this server's clock
    token       bigint NOT NULL DEFAULT {millis(pg_catalog.clock_timestamp())},
    acquired_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    inbox       pg_catalog.text,                       -- the channel on which the holder can be woken
    waits       bigint,                                -- these two carry what a claim asks for into the statement
    in_turn     boolean,                               -- that decides, and mean nothing in a row
    waiters     pg_catalog.jsonb,                      -- the wait queue: [{id, inbox, expiry, attempt, asked, until}]
    name        pg_catalog.bytea                       -- the name, where the key is only its hash
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);

-- The pool table: one row for each semaphore, reader-writer lock and queue of a fair mutex.
CREATE TABLE IF NOT EXISTS {pool} (
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {pool_pk} PRIMARY KEY,
    capacity    integer NOT NULL,
    token       bigint NOT NULL,                       -- the last fencing token
    holders     pg_catalog.jsonb NOT NULL,             -- [{id, weight, token, since, until, inbox}]
    queue       pg_catalog.jsonb NOT NULL,             -- [{id, weight, inbox, expiry, asked, until, attempt}], in order
    used_until  timestamp with time zone NOT NULL,     -- after this moment nobody holds it or waits for it
    name        pg_catalog.bytea
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
