-- Releases slots, after their rows, or withdraws a claim. P1 the beginning of the names of the slots' locks, P2 principal, P3 resource,
-- P4 id, P5 the numbers of the slots, four digits each. A slot that this session does not hold is no error.
SET NOCOUNT ON;
DECLARE @at INT, @lock NVARCHAR(255), @got INT, @worst INT;
SET @at = 1;
SET @worst = 0;
DELETE FROM {holders} WHERE resource = @P3 AND id = @P4;
WHILE @at < LEN(@P5)
BEGIN
    SET @lock = @P1 + CAST(CAST(SUBSTRING(@P5, @at, 4) AS INT) AS NVARCHAR(10));
    SET @got = 0;
    IF APPLOCK_MODE(@P2, @lock, 'Session') <> 'NoLock'
        EXEC @got = sp_releaseapplock @Resource = @lock, @LockOwner = 'Session', @DbPrincipal = @P2;
    IF @got < 0 SET @worst = @got;
    SET @at = @at + 4;
END
SELECT @worst AS got;
