-- Mutexes: one row each. The key is a hash of kind and name, since a name may be longer than an index entry. Times are
-- microseconds since 1970 by this server's UTC clock. A free row stays for a while: it remembers the last fencing token.
CREATE TABLE IF NOT EXISTS {lock} (
    k           BINARY(32) NOT NULL PRIMARY KEY,
    name        VARBINARY(4096) NOT NULL,
    holder      VARBINARY(2048) NOT NULL DEFAULT '',    -- the lock id; empty: free
    token       BIGINT UNSIGNED NOT NULL DEFAULT 0,     -- the last fencing token
    acquired_at BIGINT NOT NULL DEFAULT 0,
    expires_at  BIGINT NOT NULL DEFAULT 0               -- of a free row: since when it is free
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Semaphores, reader-writer locks and the wait queues of fair mutexes: one row each. A step about one of them locks its
-- row first, and with it all its entries.
CREATE TABLE IF NOT EXISTS {pool} (
    k           BINARY(32) NOT NULL PRIMARY KEY,
    kind        VARBINARY(16) NOT NULL,
    name        VARBINARY(4096) NOT NULL,
    capacity    INT UNSIGNED NOT NULL DEFAULT 0,
    token       BIGINT UNSIGNED NOT NULL DEFAULT 0,     -- the last fencing token
    used_at     BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Holders and waiters of pools, and waiters for mutexes.
CREATE TABLE IF NOT EXISTS {entry} (
    k           BINARY(32) NOT NULL,
    id          VARBINARY(2048) NOT NULL,               -- the lock id
    seq         BIGINT UNSIGNED NOT NULL,               -- the order of arrival
    held        TINYINT NOT NULL,                       -- 1: holds, 0: waits
    weight      INT UNSIGNED NOT NULL,
    token       BIGINT UNSIGNED NOT NULL,
    since       BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    PRIMARY KEY (k, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
