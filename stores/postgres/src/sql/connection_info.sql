-- What a connection leads to. $1: the process id of the handshake. If it is the server's own there is no pooler, and the
-- session is ours: unqualified names are then not looked up in schemas where other users may create objects.
SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('server_version_num')::integer,
       pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'UTF8',
       CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1
            THEN pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) END,
       pg_catalog.current_schemas(true)
