SELECT $1::text AS key, $2::text AS id, $3::bigint AS expiry, $4::text AS inbox, $5::bigint AS waits,
       $6::boolean AS in_turn, $7::bytea AS name, pg_catalog.clock_timestamp() AS now
WHERE {limit}
OFFSET 0
