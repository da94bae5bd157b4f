-- P1 the session's own lock, P2 principal.
SET NOCOUNT ON;
DECLARE @got INT;
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = @P2;
SELECT @got AS got, @@SPID AS spid;
