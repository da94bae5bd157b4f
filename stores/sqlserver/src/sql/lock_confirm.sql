-- After a wait, before the lock is granted. P1 resource, P2 id, P3 hold_us.
SET NOCOUNT ON;
UPDATE {holders} SET hold_us = @P3 WHERE resource = @P1 AND id = @P2;
