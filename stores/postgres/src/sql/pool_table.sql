CREATE TABLE IF NOT EXISTS {pool} (
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {pool_pk} PRIMARY KEY,
    capacity    integer NOT NULL,
    token       bigint NOT NULL,                       -- the last fencing token
    holders     pg_catalog.jsonb NOT NULL,             -- [{id, weight, token, since, until, inbox}]
    queue       pg_catalog.jsonb NOT NULL,             -- [{id, weight, inbox, expiry, asked, until, attempt}], in order
    used_until  timestamp with time zone NOT NULL,     -- after this moment it has no holder and no waiter
    name        pg_catalog.bytea                       -- the name, where the key has only its hash
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
