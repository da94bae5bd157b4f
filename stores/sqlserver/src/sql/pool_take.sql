-- Takes free slots of a semaphore while we hold its queue: P1 the beginning of their names, P2 principal, P3 capacity, P4 how many are
-- missing, P5 where to begin, P6 how long to wait for one of them if too few are free, P7 resource, P8 id, P9 kind, P10 name,
-- P11 lock id, P12 weight, P13 session, P14 hold_us. A slot that this session holds for another permit is not taken again.
SET NOCOUNT ON;
DECLARE @at INT, @slot INT, @missing INT, @got INT, @lock NVARCHAR(255), @token BIGINT, @pending BIGINT, @time INT;
SET @at = 0;
SET @missing = @P4;
SELECT @token = NEXT VALUE FOR {tokens};
WHILE @missing > 0 AND (@at < @P3 OR (@at < 2 * @P3 AND @P6 > 0))
BEGIN
    SET @slot = (@P5 + @at) % @P3;
    SET @lock = @P1 + CAST(@slot AS NVARCHAR(10));
    SET @time = CASE WHEN @at < @P3 THEN 0 ELSE @P6 END;
    SET @got = -1;
    IF APPLOCK_MODE(@P2, @lock, 'Session') = 'NoLock'
        EXEC @got = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = @time, @DbPrincipal = @P2;
    IF @got >= 0
    BEGIN
        INSERT INTO {holders} (resource, id, slot, kind, name, lock_id, weight, capacity, shared, token, session, spid, since, hold_us)
            VALUES (@P7, @P8, @slot, @P9, @P10, @P11, @P12, @P3, 0, @token, @P13, @@SPID, SYSUTCDATETIME(), @P14);
        SET @missing = @missing - 1;
    END
    -- One wait is enough: then they are all tried again.
    IF @at >= @P3 AND @time > 0 SET @at = 2 * @P3;
    SET @at = @at + 1;
END
IF @missing = 0
BEGIN
    UPDATE {holders} SET token = @token, since = SYSUTCDATETIME() WHERE resource = @P7 AND id = @P8 AND slot >= 0;
    DELETE FROM {holders} WHERE resource = @P7 AND id = @P8 AND slot = -1;
    SELECT @pending = MAX(other.hold_us) FROM {holders} other, {holders} mine
        WHERE other.resource = @P7 AND mine.resource = @P7 AND mine.id = @P8 AND other.id <> @P8 AND other.slot = mine.slot AND mine.slot >= 0;
END
SELECT @missing AS missing, @token AS token, COALESCE(@pending, 0) AS pending;
IF @missing < @P12
    SELECT slot FROM {holders} WHERE resource = @P7 AND id = @P8 AND slot >= 0;
