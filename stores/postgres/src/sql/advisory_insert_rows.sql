-- Shows the holders of mutexes to `inspect`, some milliseconds after they were granted. $1: the session lock of this session.
INSERT INTO {session} (lock_id, session, key, pair, shared, kind, name, weight, capacity, token, since)
SELECT c.lock_id, $1::bigint, c.key, c.pair, false, 'mutex', c.name, 1, 1, c.token,
       pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => c.age)
FROM unnest($2::text[], $3::bigint[], $4::boolean[], $5::bytea[], $6::bigint[], $7::double precision[])
     AS c (lock_id, key, pair, name, token, age)
ON CONFLICT (lock_id) DO NOTHING
