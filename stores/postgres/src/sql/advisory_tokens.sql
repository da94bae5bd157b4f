-- Brings the tokens up to the clock if they are behind it: a fail-over may have lost the last ones. Whoever draws a token
-- has this lock in shared mode, so that none is drawn between the look and the change.
SELECT pg_catalog.pg_advisory_xact_lock(7235441220220052333);
SELECT pg_catalog.setval('{token}', n.now)
FROM (SELECT {millis(pg_catalog.clock_timestamp())} AS now) n
WHERE n.now > (SELECT t.last_value FROM {token} t);
