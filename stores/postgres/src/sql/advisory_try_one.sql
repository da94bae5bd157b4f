-- Acquires an advisory lock in exclusive mode if it is free now, and draws its token. NULL: it is contended. Writes no row.
SELECT CASE
    WHEN NOT CASE
        WHEN $2 THEN pg_catalog.pg_try_advisory_lock(($1 >> 32)::integer, $3)
        ELSE pg_catalog.pg_try_advisory_lock($1)
    END THEN NULL
    WHEN pg_catalog.pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL THEN pg_catalog.nextval('{token}')
END AS token
