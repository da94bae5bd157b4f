-- One attempt for a mutex or a reader-writer lock. P1 lock, P2 mode, P3 principal, P4 resource, P5 id, P6 kind, P7 name, P8 lock
-- id, P9 weight, P10 capacity, P11 shared, P12 session, P13 hold_us.
-- A row of another holder that is in our way belongs to a session that ended: the lock is ours.
SET NOCOUNT ON;
DECLARE @got INT, @free INT, @token BIGINT, @pending BIGINT;
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = @P2, @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = @P3;
IF @got = -999 SELECT @free = APPLOCK_TEST(@P3, @P1, @P2, 'Session');
IF @got >= 0
BEGIN
    SELECT @token = NEXT VALUE FOR {tokens};
    SELECT @pending = MAX(hold_us) FROM {holders}
        WHERE resource = @P4 AND slot >= 0 AND id <> @P5 AND (shared = 0 OR @P11 = 0);
    INSERT INTO {holders} (resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us)
        VALUES (@P4, @P5, 0, @P6, @P7, @P8, @P9, @P10, @P11, @token, @P12, @@SPID, SYSUTCDATETIME(), @P13);
END
SELECT @got AS got, @free AS free, @token AS token, COALESCE(@pending, 0) AS pending;
