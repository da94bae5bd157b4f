SELECT u.*, clock_timestamp() AS now
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[], $7::bytea[])
     AS u (key, id, expiry, inbox, waits, in_turn, name)
ORDER BY u.key COLLATE "C"  -- one order for all: batches cannot deadlock
