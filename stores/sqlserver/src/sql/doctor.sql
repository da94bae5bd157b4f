-- What the server is, and what the login may do here.
SELECT CAST(@@VERSION AS NVARCHAR(400)) AS version,
    CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS NVARCHAR(60)) AS updateability,
    HAS_PERMS_BY_NAME(NULL, NULL, 'ALTER ANY CONNECTION') AS may_kill;
