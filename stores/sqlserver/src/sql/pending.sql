-- Holders that did not release a lock that we have now. P1 resource, P2 our id, P3 our token, P4 1 for a reader.
SELECT session, hold_us FROM {holders}
WHERE resource = @P1 AND slot >= 0 AND id <> @P2 AND token < @P3 AND (shared = 0 OR @P4 = 0)
    AND slot IN (SELECT mine.slot FROM {holders} mine WHERE mine.resource = @P1 AND mine.id = @P2);
