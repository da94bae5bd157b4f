-- (to come)
SELECT 1;
