-- Whatever the server's defaults: each statement commits by itself, and a row that another session keeps locked is an error after a
-- second. The time-out is for rows; sp_getapplock has its own.
SET IMPLICIT_TRANSACTIONS OFF;
SET XACT_ABORT OFF;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
-- Which server this is, and since when it runs: tempdb is created whenever it starts, and every login sees it. No row where
-- tempdb is not shown (Azure SQL Database).
SELECT CAST(@@SERVERNAME AS NVARCHAR(200)) AS server, CONVERT(NVARCHAR(40), create_date, 126) AS started
FROM sys.databases WHERE name = 'tempdb';
