-- P1 the session's own lock, P2 principal, P3 the lock that all sessions of its process share.
SET NOCOUNT ON;
DECLARE @got INT, @shared INT;
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = @P2;
EXEC @shared = sp_getapplock @Resource = @P3, @LockMode = 'Shared', @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = @P2;
SELECT @got AS got, @shared AS shared, @@SPID AS spid;
