-- Which of these tables and sequences exist, and with which columns; in request order. to_regclass finds tables that were
-- committed after this statement began, and whose columns the statement cannot see yet. So a table exists if it is in
-- pg_class, which is read as of the same moment as the columns.
SELECT u.name, c.oid IS NOT NULL AS found,
       coalesce((
           SELECT pg_catalog.array_agg(a.attname::text)
           FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             -- A lease that ends at a time without a zone ends at another moment for each client.
             AND (a.attname <> 'expire_time' OR a.atttypid = 'pg_catalog.timestamptz'::regtype::oid)), '{}') AS columns,
       (
           SELECT pg_catalog.format_type(a.atttypid, NULL)
           FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attname = 'expire_time' AND NOT a.attisdropped
             AND a.atttypid <> 'pg_catalog.timestamptz'::regtype::oid) AS wrong_time
FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS u (name, place)
LEFT JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(u.name)::oid
ORDER BY u.place
