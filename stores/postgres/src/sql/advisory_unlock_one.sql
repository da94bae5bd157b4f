-- Releases an advisory lock that has no row. False: this session did not hold it.
SELECT CASE
    WHEN $2 THEN pg_catalog.pg_advisory_unlock(($1 >> 32)::integer, $3)
    ELSE pg_catalog.pg_advisory_unlock($1)
END AS released
