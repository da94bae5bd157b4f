-- Fencing tokens of advisory locks. Drawn after a lock is granted, one at a time (CACHE 1): higher for each later grant.
CREATE SEQUENCE IF NOT EXISTS {token} AS bigint CACHE 1;

-- Who holds advisory locks and who waits for them, for people to see. Nothing depends on it: what counts are the locks
-- themselves. Unlogged, because after a crash of the server no session is left either. Without a column that counts:
-- on a replica that is promoted the sequence of an unlogged table is broken.
CREATE UNLOGGED TABLE IF NOT EXISTS {session} (
    lock_id     pg_catalog.text NOT NULL CONSTRAINT {session_pk} PRIMARY KEY,
    session     bigint NOT NULL,                       -- the advisory lock that its session has
    key         bigint NOT NULL,                       -- the advisory lock; a pair of numbers is put together
    pair        boolean NOT NULL,
    kind        pg_catalog.text NOT NULL,
    name        pg_catalog.bytea NOT NULL,
    shared      boolean NOT NULL,
    weight      integer NOT NULL,
    capacity    integer NOT NULL,
    token       bigint,                                -- NULL while it waits
    since       timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 50);

-- Semaphores: one row each. Holders and waiters last as long as their sessions.
CREATE TABLE IF NOT EXISTS {session_pool} (
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {session_pool_pk} PRIMARY KEY,
    capacity    integer NOT NULL,
    token       bigint NOT NULL,                       -- the last fencing token
    holders     pg_catalog.jsonb NOT NULL,             -- [{id, weight, token, since, until, inbox}]
    queue       pg_catalog.jsonb NOT NULL,             -- [{id, weight, inbox, expiry, asked, until, attempt}], in order
    used_until  timestamp with time zone NOT NULL,
    name        pg_catalog.bytea
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
