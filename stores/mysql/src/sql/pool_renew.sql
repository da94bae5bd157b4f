-- Renews permits. An expiry never moves back, and an expired lease stays expired. One row answers.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows
FROM {batch} b STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k FOR UPDATE;
SET @distlock_now = {now};
UPDATE {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
SET e.expires_at = GREATEST(e.expires_at, @distlock_now + b.expiry), e.token = GREATEST(e.token, b.token)
WHERE e.held = 1 AND e.expires_at > @distlock_now;
UPDATE {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
    STRAIGHT_JOIN {pool} p FORCE INDEX (PRIMARY) ON p.k = b.k
SET p.token = GREATEST(p.token, e.token)
WHERE e.held = 1 AND e.token > p.token;
SELECT COUNT(*) AS renewed, GROUP_CONCAT(b.n) AS places
FROM {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k AND e.id = b.id
WHERE e.held = 1 AND e.expires_at > @distlock_now;
COMMIT
