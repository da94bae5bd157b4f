-- What a connection leads to. If $1, the process that the other end told in its handshake, is the server's own, no pooler is
-- in between: then no name that is not qualified is looked for in schemas where others may create.
SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('server_version_num')::integer,
       pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'UTF8',
       CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1
            THEN pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) END,
       pg_catalog.current_schemas(true)
