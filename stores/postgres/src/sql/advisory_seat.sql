-- Makes a session fit to hold locks: nothing of the server's own may end it or its waiting, except that it ends when the
-- client was not heard of for $1 milliseconds. Settings that this server does not know are left out.
-- TCP looks whether a silent client is there only after that time: its guards must be lost before the locks are free.
SELECT s.name, pg_catalog.set_config(s.name, w.value, false)
FROM (VALUES ('statement_timeout', '0'), ('lock_timeout', '0'), ('idle_in_transaction_session_timeout', '0'),
             ('transaction_timeout', '0'), ('idle_session_timeout', $1::text),
             ('tcp_keepalives_idle', pg_catalog.ceil($1::text::numeric / 1000.0)::text),
             ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
             ('default_transaction_isolation', 'read committed'), ('plan_cache_mode', 'force_generic_plan'),
             ('jit', 'off')
     ) AS w (name, value)
JOIN pg_catalog.pg_settings s ON s.name = w.name
