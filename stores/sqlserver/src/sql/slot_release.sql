-- Releases a slot, after its row. P1 lock, P2 principal, P3 resource, P4 id, P5 slot.
SET NOCOUNT ON;
DECLARE @got INT;
SET @got = 0;
DELETE FROM {holders} WHERE resource = @P3 AND id = @P4 AND slot = @P5;
IF APPLOCK_MODE(@P2, @P1, 'Session') <> 'NoLock'
    EXEC @got = sp_releaseapplock @Resource = @P1, @LockOwner = 'Session', @DbPrincipal = @P2;
SELECT @got AS got;
