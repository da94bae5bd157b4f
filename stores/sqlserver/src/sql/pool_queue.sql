-- Waits for the head of a semaphore's queue. P1 queue, P2 principal, P3 time-out, P4 resource, P5 id, P6 kind, P7 name, P8 lock id,
-- P9 weight, P10 capacity, P11 session, P12 1 to be shown as a waiter.
-- The rows with another capacity come back: they count if their session is alive.
SET NOCOUNT ON;
DECLARE @got INT, @free INT;
IF @P12 = 1
    INSERT INTO {holders} (resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us)
        VALUES (@P4, @P5, -1, @P6, @P7, @P8, @P9, @P10, 0, 0, @P11, @@SPID, SYSUTCDATETIME(), 0);
EXEC @got = sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = @P3, @DbPrincipal = @P2;
IF @got = -999 SELECT @free = APPLOCK_TEST(@P2, @P1, 'Exclusive', 'Session');
SELECT @got AS got, @free AS free;
