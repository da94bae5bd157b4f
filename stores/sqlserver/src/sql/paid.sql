-- We leave before those guards are lost, and the next one waits for the rest. P5 is what we waited, in microseconds.
SET NOCOUNT ON;
UPDATE {holders} SET hold_us = CASE WHEN hold_us > @P5 THEN hold_us - @P5 ELSE 0 END
    WHERE resource = @P1 AND slot >= 0 AND id <> @P2 AND token < @P3 AND (shared = 0 OR @P4 = 0)
    AND slot IN (SELECT mine.slot FROM {holders} mine WHERE mine.resource = @P1 AND mine.id = @P2);
