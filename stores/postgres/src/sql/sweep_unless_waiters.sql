AND NOT EXISTS (
    SELECT FROM pg_catalog.jsonb_array_elements(r.waiters) AS w (entry)
    WHERE (w.entry ->> 'until'::text)::bigint > {micros(pg_catalog.clock_timestamp())})
