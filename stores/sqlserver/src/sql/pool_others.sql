-- Who uses a semaphore with another capacity. P1 resource, P2 capacity.
SELECT DISTINCT capacity, session FROM {holders} WHERE resource = @P1 AND capacity <> @P2;
