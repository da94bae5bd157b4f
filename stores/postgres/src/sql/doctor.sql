-- What is to be known of a server that keeps locks. $1: our tables.
SELECT current_setting('server_version') AS version,
       pg_is_in_recovery() AS replica,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('fsync') = 'on' AS fsync,
       current_setting('full_page_writes') = 'on' AS full_pages,
       current_setting('synchronous_commit') AS commits,
       current_setting('max_connections')::integer AS max_connections,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS DISTINCT FROM 'sync'
                                                   AND sync_state IS DISTINCT FROM 'quorum') AS lagging,
       floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
       (SELECT count(*) FROM unnest($1::text[]) AS u (name) JOIN pg_class c ON c.oid = to_regclass(u.name)
        WHERE c.relkind = 'r' AND c.relpersistence = 'u') AS unlogged,
       (SELECT coalesce(string_agg(u.name || ' ' || p.privilege, ', '), '')
        FROM unnest($1::text[]) AS u (name)
        JOIN pg_class c ON c.oid = to_regclass(u.name) AND c.relkind IN ('r', 'p')
        CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
        WHERE NOT has_table_privilege(c.oid, p.privilege)) AS missing
