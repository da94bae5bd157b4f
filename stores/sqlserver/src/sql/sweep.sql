-- Deletes the row of a session that ended, once no guard of it is left. P1 resource, P2 id, P3 session.
SET NOCOUNT ON;
DELETE FROM {holders} WHERE resource = @P1 AND id = @P2 AND session = @P3;
