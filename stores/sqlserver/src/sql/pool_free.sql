-- How many slots are free, while we hold the queue. P1 the beginning of their names, P2 principal, P3 capacity.
SET NOCOUNT ON;
DECLARE @at INT, @free INT, @lock NVARCHAR(255);
SET @at = 0;
SET @free = 0;
WHILE @at < @P3
BEGIN
    SET @lock = @P1 + CAST(@at AS NVARCHAR(10));
    IF APPLOCK_MODE(@P2, @lock, 'Session') = 'NoLock' AND APPLOCK_TEST(@P2, @lock, 'Exclusive', 'Session') = 1
        SET @free = @free + 1;
    SET @at = @at + 1;
END
SELECT @free AS free;
