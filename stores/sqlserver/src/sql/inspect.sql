-- Every row, also of sessions that ended.
SELECT resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid,
    DATEDIFF(second, since, SYSUTCDATETIME()) AS age, hold_us
FROM {holders};
