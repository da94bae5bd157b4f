-- P1 the lock of another session, P2 principal. It cannot be had while that session lives.
SELECT APPLOCK_TEST(@P2, @P1, 'Exclusive', 'Session') AS free;
