-- The highest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS {fence} (
    resource text COLLATE "C" NOT NULL CONSTRAINT {fence_pk} PRIMARY KEY,
    token    bigint NOT NULL
);
