-- Without a table and tokens. P1 lock, P2 mode, P3 principal, P4 time-out.
SET NOCOUNT ON;
DECLARE @got INT, @free INT;
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = @P2, @LockOwner = 'Session', @LockTimeout = @P4, @DbPrincipal = @P3;
IF @got = -999 SELECT @free = APPLOCK_TEST(@P3, @P1, @P2, 'Session');
SELECT @got AS got, @free AS free, CAST(0 AS BIGINT) AS token, CAST(0 AS BIGINT) AS pending;
