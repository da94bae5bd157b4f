-- Who uses a semaphore with another capacity, also sessions that ended. P1 resource, P2 capacity.
SELECT capacity, session, slot, id, hold_us FROM {holders} WHERE resource = @P1 AND capacity <> @P2;
