-- Takes a mutex from its holder. The token stays.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows FROM {lock} WHERE k = {key} FOR UPDATE;
SET @distlock_now = {now};
SELECT holder AS id, 1 AS weight, token, acquired_at AS since, expires_at - @distlock_now AS remaining
FROM {lock} WHERE k = {key} AND holder <> '' AND expires_at > @distlock_now;
UPDATE {lock} SET holder = '', expires_at = @distlock_now WHERE k = {key} AND holder <> '' AND expires_at > @distlock_now;
COMMIT
