-- Settings of a session that holds locks. No time-out of the server may end it or its waits, with one exception: the server
-- ends it when its client sent nothing for $1 milliseconds. Settings that this server does not know are left out.
-- TCP keep-alive starts only after that time: guards must be lost before the locks are free.
SELECT s.name, pg_catalog.set_config(s.name, w.value, false)
FROM (VALUES ('statement_timeout', '0'), ('lock_timeout', '0'), ('idle_in_transaction_session_timeout', '0'),
             ('transaction_timeout', '0'), ('idle_session_timeout', $1::text),
             ('tcp_keepalives_idle', pg_catalog.ceil($1::text::numeric / 1000.0)::text),
             ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
             ('default_transaction_isolation', 'read committed'), ('plan_cache_mode', 'force_generic_plan'),
             ('jit', 'off')
     ) AS w (name, value)
JOIN pg_catalog.pg_settings s ON s.name = w.name
