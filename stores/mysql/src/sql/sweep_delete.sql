-- Deletes spent rows. Rows that another session has locked are left for the next sweep, and what is spent is decided after the
-- others are locked. One request: a client that is paused in the middle of a sweep keeps no row locked.
START TRANSACTION;
SELECT COALESCE(GROUP_CONCAT(DISTINCT 'X''', HEX(t.k), ''''), 'NULL') INTO @distlock_keys
FROM {table} t FORCE INDEX (PRIMARY) WHERE k IN ({keys}) AND {spent} FOR UPDATE SKIP LOCKED;
SET @distlock_sql = CONCAT('DELETE t FROM {table} t WHERE k IN (', @distlock_keys, ') AND {spent, quoted}');
PREPARE distlock_sweep FROM @distlock_sql;
EXECUTE distlock_sweep;
SET @distlock_rows = ROW_COUNT();
COMMIT;
SELECT @distlock_rows AS deleted;
DEALLOCATE PREPARE distlock_sweep
