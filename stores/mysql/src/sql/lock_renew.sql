-- Renews mutexes. An expiry never moves back, and an expired lease stays expired. One row answers: a process
-- may hold a hundred thousand.
START TRANSACTION;
SELECT COUNT(*) INTO @distlock_rows
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k FOR UPDATE;
SET @distlock_now = {now};
UPDATE {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
SET l.expires_at = GREATEST(l.expires_at, @distlock_now + b.expiry), l.token = GREATEST(l.token, b.token)
WHERE l.holder = b.id AND l.expires_at > @distlock_now;
SELECT COUNT(*) AS renewed, GROUP_CONCAT(b.n) AS places
FROM {batch} b STRAIGHT_JOIN {lock} l FORCE INDEX (PRIMARY) ON l.k = b.k
WHERE l.holder = b.id AND l.expires_at > @distlock_now;
COMMIT
