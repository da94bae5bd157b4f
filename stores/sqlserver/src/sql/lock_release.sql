-- Releases a mutex or a reader-writer lock, or withdraws a wait for it: the row first. P1 lock, P2 principal, P3 resource, P4 id.
SET NOCOUNT ON;
DECLARE @got INT;
SET @got = 0;
DELETE FROM {holders} WHERE resource = @P3 AND id = @P4;
IF APPLOCK_MODE(@P2, @P1, 'Session') <> 'NoLock'
    EXEC @got = sp_releaseapplock @Resource = @P1, @LockOwner = 'Session', @DbPrincipal = @P2;
SELECT @got AS got;
