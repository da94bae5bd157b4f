-- Fencing tokens of GET_LOCK locks: drawn by the session that holds the lock. The other columns are for people to see: what
-- counts is the lock itself.
CREATE TABLE IF NOT EXISTS {session} (
    k             BINARY(32) NOT NULL PRIMARY KEY,
    name          VARBINARY(4096) NOT NULL,
    token         BIGINT UNSIGNED NOT NULL,
    holder        VARBINARY(2048) NOT NULL,             -- the lock id
    connection_id BIGINT UNSIGNED NOT NULL,
    acquired_at   BIGINT NOT NULL                       -- microseconds since 1970, by this server's UTC clock
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
