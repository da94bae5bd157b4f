-- Which of these keys have a row that another session keeps locked. Nothing waits.
START TRANSACTION;
SELECT b.k, 1 AS found FROM {batch} b STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.k = b.k;
SELECT b.k, -1 AS found FROM {batch} b STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.k = b.k FOR UPDATE SKIP LOCKED;
SELECT b.k, 1 AS found FROM {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k;
SELECT b.k, -1 AS found FROM {batch} b STRAIGHT_JOIN {entry} e FORCE INDEX (PRIMARY) ON e.k = b.k FOR UPDATE SKIP LOCKED;
ROLLBACK
