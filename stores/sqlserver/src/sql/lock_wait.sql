-- Waits for a mutex or a reader-writer lock in the server's queue. The parameters are those of lock_try.sql. The waiter's
-- row is written first, and becomes the holder's. Nothing is granted yet, so no later holder has to wait for it: see
-- lock_confirm.sql.
SET NOCOUNT ON;
DECLARE @got INT, @token BIGINT, @pending BIGINT;
INSERT INTO {holders} (resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us)
    VALUES (@P4, @P5, -1, @P6, @P7, @P8, @P9, @P10, @P11, 0, @P12, @@SPID, SYSUTCDATETIME(), 0);
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = @P2, @LockOwner = 'Session', @LockTimeout = -1, @DbPrincipal = @P3;
IF @got >= 0
BEGIN
    SELECT @token = NEXT VALUE FOR {tokens};
    SELECT @pending = MAX(hold_us) FROM {holders}
        WHERE resource = @P4 AND slot >= 0 AND id <> @P5 AND (shared = 0 OR @P11 = 0);
    UPDATE {holders} SET slot = 0, token = @token, since = SYSUTCDATETIME()
        WHERE resource = @P4 AND id = @P5 AND slot = -1;
END
SELECT @got AS got, NULL AS free, @token AS token, COALESCE(@pending, 0) AS pending;
