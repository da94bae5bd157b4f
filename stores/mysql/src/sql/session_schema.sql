-- GET_LOCK locks: the fencing token of each name, and how long its last holder may believe that it still holds it. Written
-- only by the session that has the lock. Do not delete rows: after a holder that did not release, its row makes the next
-- one wait.
CREATE TABLE IF NOT EXISTS {session} (
    k               BINARY(32) NOT NULL PRIMARY KEY,
    name            VARBINARY(4096) NOT NULL,
    token           BIGINT UNSIGNED NOT NULL,
    holder          VARBINARY(2048) NOT NULL,           -- the lock id
    connection_id   BIGINT UNSIGNED NOT NULL,
    acquired_at     BIGINT NOT NULL,                    -- microseconds since 1970, by this server's UTC clock
    hold_us         BIGINT UNSIGNED NOT NULL,           -- its guard is lost this long after its session; 0: it released
    process         VARBINARY(512) NOT NULL,            -- the socket of its process, @, its address as the server sees it
    pending_us      BIGINT UNSIGNED NOT NULL,           -- not 0: an earlier holder did not release, and the holder was not
    pending_process VARBINARY(512) NOT NULL             -- granted the lock yet; that one's `hold_us` and `process`
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
