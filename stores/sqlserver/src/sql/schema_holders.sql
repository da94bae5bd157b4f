-- One row for each lock that is held or waited for, and one for each slot of a semaphore. The locks are the server's own
-- (sp_getapplock): a row only says whose they are, and how long after the end of its session the guard of a holder lasts.
-- Do not delete rows by hand: after a holder that did not release, its row makes the next one wait.
CREATE TABLE {holders} (
    resource BINARY(32)      NOT NULL,                 -- a hash of kind and name
    id       BINARY(32)      NOT NULL,                 -- a hash of the lock id
    slot     INT             NOT NULL,                 -- of a semaphore, from 0; -1: a waiter
    kind     VARCHAR(16)     NOT NULL,
    name     VARBINARY(4096) NOT NULL,
    lock_id  VARBINARY(4096) NOT NULL,
    weight   INT             NOT NULL,
    capacity INT             NOT NULL,
    shared   INT             NOT NULL,                 -- 1: a reader
    token    BIGINT          NOT NULL,                 -- 0: a waiter
    session  VARCHAR(64)     NOT NULL,                 -- alive for as long as it holds the lock of its name
    spid     INT             NOT NULL,
    since    DATETIME2(3)    NOT NULL,                 -- by this server's UTC clock
    hold_us  BIGINT          NOT NULL,                 -- its guard is lost this long after its session
    PRIMARY KEY (resource, id, slot, session)
);
