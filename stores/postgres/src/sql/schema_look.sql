-- Which of these tables and sequences are there, and with which columns; in the order in which they were asked for.
SELECT u.name, to_regclass(u.name) IS NOT NULL AS there,
       coalesce((
           SELECT array_agg(a.attname::text)
           FROM pg_attribute a
           WHERE a.attrelid = to_regclass(u.name) AND a.attnum > 0 AND NOT a.attisdropped
             -- A lease that ends at a time without a zone ends at another moment for each client.
             AND (a.attname <> 'expire_time' OR a.atttypid = 'timestamptz'::regtype)), '{}') AS columns
FROM unnest($1::text[]) WITH ORDINALITY AS u (name, place)
ORDER BY u.place
