-- The tokens. Drawn while a lock is held, so they rise for each resource; a restart of the server leaves a gap at most.
-- Name no cache size: SQL Server caches numbers for all sessions, but a compatible server may give each session its own.
CREATE SEQUENCE {tokens} AS BIGINT START WITH 1 INCREMENT BY 1;
