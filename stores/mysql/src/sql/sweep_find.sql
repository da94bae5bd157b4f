-- Rows after a key, and which of them were of no use for the retention time. The clock term alone gives higher tokens than
-- theirs.
SELECT k, {spent} AS spent FROM {table} t WHERE k > {after} ORDER BY k LIMIT 1000
