-- Draws a token, as every acquisition does.
SELECT NEXT VALUE FOR {tokens} AS token;
