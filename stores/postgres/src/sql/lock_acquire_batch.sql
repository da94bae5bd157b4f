-- `waits` has the number of the claim: the part that decides can only read columns of the table.
SELECT u.key, u.id, u.expiry, u.inbox, CASE WHEN u.waits IS NOT NULL THEN u.n END AS waits, u.in_turn, u.name,
       pg_catalog.clock_timestamp() AS now
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[], $7::bytea[])
     WITH ORDINALITY AS u (key, id, expiry, inbox, waits, in_turn, name, n)
WHERE {limit}
ORDER BY u.key COLLATE pg_catalog."C"  -- one order for all batches: they cannot deadlock
