-- P1 the session's own lock, P2 principal. The time-out is for rows; sp_getapplock has its own.
SET NOCOUNT ON;
SET IMPLICIT_TRANSACTIONS OFF;
SET XACT_ABORT OFF;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
DECLARE @got INT;
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = @P2;
SELECT @got AS got, @@SPID AS spid;
