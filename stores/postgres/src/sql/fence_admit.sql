-- Admits a token that is at least the highest seen. No row: it is stale. Either way the row stays locked until the
-- transaction ends, so writers of one resource run one after the other. This runs in the caller's session: operators are
-- qualified because its search_path may find others first.
INSERT INTO {fence} AS f (resource, token)
VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE f.token OPERATOR(pg_catalog.<=) EXCLUDED.token
RETURNING f.token
