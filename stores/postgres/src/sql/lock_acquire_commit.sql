
    -- A claim that is not granted does not wait for the disk or for replicas with the row locked: if a crash undoes it, the
    -- waiter asks again. A grant waits, and everything written before it is then on the disk as well.
    CASE WHEN l.value <> $2 THEN pg_catalog.set_config('synchronous_commit', 'off', true) END AS commit,
