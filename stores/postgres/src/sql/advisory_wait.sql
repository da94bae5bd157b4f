-- Waits for an advisory lock in the server's own wait queue, and draws its token once it is granted. Nothing else: each step after
-- the grant delays the handoff. The row of the waiter becomes that of a holder later (advisory_show_holder.sql).
SELECT CASE
    WHEN NOT CASE
        WHEN $2 AND $3 THEN pg_catalog.pg_advisory_lock_shared(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $2 THEN pg_catalog.pg_advisory_lock(($1 >> 32)::integer, $4) IS NOT NULL
        WHEN $3 THEN pg_catalog.pg_advisory_lock_shared($1) IS NOT NULL
        ELSE pg_catalog.pg_advisory_lock($1) IS NOT NULL
    END THEN NULL
    WHEN pg_catalog.pg_advisory_xact_lock_shared(7235441220220052333) IS NOT NULL THEN pg_catalog.nextval('{token}')
END AS token
