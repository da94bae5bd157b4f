-- The highest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS {fence} (
    resource    pg_catalog.text COLLATE pg_catalog."C" NOT NULL CONSTRAINT {fence_pk} PRIMARY KEY,
    token       bigint NOT NULL
);
