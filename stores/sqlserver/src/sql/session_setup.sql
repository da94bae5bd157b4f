-- Whatever the server's defaults: each statement commits by itself, and a row that another session keeps locked is an error after a
-- second. The time-out is for rows; sp_getapplock has its own.
SET IMPLICIT_TRANSACTIONS OFF;
SET XACT_ABORT OFF;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
