-- Advances the token sequence to the clock if it is behind: a fail-over may have lost the last tokens. A statement that draws
-- a token holds this lock in shared mode, so no token is drawn between the comparison and the change.
SELECT pg_catalog.pg_advisory_xact_lock(7235441220220052333);
SELECT pg_catalog.setval('{token}', n.now)
FROM (SELECT {millis(pg_catalog.clock_timestamp())} AS now) n
WHERE n.now > (SELECT t.last_value FROM {token} t);
