-- Fencing tokens of advisory locks. Drawn after a lock is granted, one at a time (CACHE 1): each later grant has a higher one.
CREATE SEQUENCE IF NOT EXISTS {token} AS bigint CACHE 1;

-- Holders of advisory locks and their waiters, for `inspect`. No decision depends on these rows: the locks themselves count.
-- Unlogged, because after a crash of the server no session is left either. No identity column: on a replica that is
-- promoted the sequence of an unlogged table is broken.
CREATE UNLOGGED TABLE IF NOT EXISTS {session} (
    lock_id     pg_catalog.text NOT NULL CONSTRAINT {session_pk} PRIMARY KEY,
    session     bigint NOT NULL,                       -- the session lock of the session that wrote the row
    key         bigint NOT NULL,                       -- the advisory lock; a pair of keys as one number
    pair        boolean NOT NULL,
    kind        pg_catalog.text NOT NULL,
    name        pg_catalog.bytea NOT NULL,
    shared      boolean NOT NULL,
    weight      integer NOT NULL,
    capacity    integer NOT NULL,
    token       bigint,                                -- NULL for a waiter
    since       timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 50);

-- One row for each semaphore and each fair queue. Holders and waiters last as long as their sessions.
