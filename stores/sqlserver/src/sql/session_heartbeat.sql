-- P1 the session's own lock, P2 principal.
SELECT APPLOCK_MODE(@P2, @P1, 'Session') AS mode;
