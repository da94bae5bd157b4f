-- What came of the locks that were asked for: whether the session has them, and their tokens. One read of the table for all.
SELECT asked.n, asked.got, drawn.token, drawn.pending_us AS pending
FROM (SELECT 0 AS n, 0 AS got, X'' AS k FROM DUAL WHERE FALSE UNION ALL SELECT {asked}) asked
LEFT JOIN {session} drawn ON drawn.k = asked.k AND asked.got = 1
ORDER BY asked.n
