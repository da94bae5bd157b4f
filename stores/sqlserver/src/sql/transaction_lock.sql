-- A lock that ends with the caller's transaction. P1 lock, P2 mode, P3 principal, P4 time-out. Without a transaction it is refused
-- here: the server would only print a message.
SET NOCOUNT ON;
DECLARE @got INT, @free INT;
IF @@TRANCOUNT = 0
    SET @got = -1000;
ELSE
    EXEC @got = sp_getapplock @Resource = @P1, @LockMode = @P2, @LockOwner = 'Transaction', @LockTimeout = @P4, @DbPrincipal = @P3;
IF @got = -999 SELECT @free = APPLOCK_TEST(@P3, @P1, @P2, 'Transaction');
SELECT @got AS got, @free AS free;
