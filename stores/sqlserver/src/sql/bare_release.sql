-- Without a table. P1 lock, P2 principal.
SET NOCOUNT ON;
DECLARE @got INT;
SET @got = 0;
IF APPLOCK_MODE(@P2, @P1, 'Session') <> 'NoLock'
    EXEC @got = sp_releaseapplock @Resource = @P1, @LockOwner = 'Session', @DbPrincipal = @P2;
SELECT @got AS got;
