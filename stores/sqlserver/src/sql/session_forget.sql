-- The session P1 ended, and all its guards are lost: no later holder waits for them.
SET NOCOUNT ON;
DELETE FROM {holders} WHERE session = @P1;
