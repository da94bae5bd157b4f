-- Takes a pool from all its holders. Its token and its queue stay.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows FROM {pool} WHERE k = {key} FOR UPDATE;
SET @distlock_now = {now};
SELECT id, weight, token, since, expires_at - @distlock_now AS remaining
FROM {entry} WHERE k = {key} AND held = 1 AND expires_at > @distlock_now ORDER BY seq;
DELETE FROM {entry} WHERE k = {key} AND held = 1;
UPDATE {pool} SET used_at = @distlock_now WHERE k = {key};
COMMIT
