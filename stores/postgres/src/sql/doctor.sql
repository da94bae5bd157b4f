-- The facts about a server that `doctor` reports. $1: our tables.
SELECT pg_catalog.current_setting('server_version') AS version,
       pg_catalog.pg_is_in_recovery() AS replica,
       pg_catalog.current_setting('transaction_read_only') = 'on' AS read_only,
       pg_catalog.current_setting('fsync') = 'on' AS fsync,
       pg_catalog.current_setting('full_page_writes') = 'on' AS full_pages,
       pg_catalog.current_setting('synchronous_commit') AS commits,
       pg_catalog.current_setting('max_connections')::integer AS max_connections,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity
        WHERE backend_type = 'client backend') AS connections,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication
        WHERE sync_state IS DISTINCT FROM 'sync' AND sync_state IS DISTINCT FROM 'quorum') AS lagging,
       pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint AS clock,
       (SELECT pg_catalog.count(*) FROM pg_catalog.unnest($1::text[]) AS u (name)
        JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(u.name)::oid
        WHERE c.relkind = 'r' AND c.relpersistence = 'u') AS unlogged,
       (SELECT coalesce(pg_catalog.string_agg(u.name || ' ' || p.privilege, ', '), '')
        FROM pg_catalog.unnest($1::text[]) AS u (name)
        JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(u.name)::oid AND c.relkind IN ('r', 'p')
        CROSS JOIN pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
        WHERE NOT pg_catalog.has_table_privilege(c.oid, p.privilege)) AS missing
