-- The rights and the columns that acquiring and releasing need, on no row.
SET NOCOUNT ON;
INSERT INTO {holders} (resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us)
    SELECT resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us
    FROM {holders} WHERE 1 = 0;
UPDATE {holders} SET token = token WHERE 1 = 0;
DELETE FROM {holders} WHERE 1 = 0;
