-- Notifies the engine that made a lock id, if an engine did: its ids are its inbox name, `-` and a number (LockId::inbox;
-- keys.rs names the channel). A message has room for less than 8000 bytes.
CASE WHEN {id} ~ '#[0-9A-Fa-f]{16}-[0-9A-Fa-f]+$' AND pg_catalog.octet_length({id}) < 7900 THEN pg_catalog.pg_notify(
    'dl_' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
        pg_catalog.regexp_replace({id}, '-[0-9A-Fa-f]+$', ''), 'UTF8')), 'hex'), 16),
    'broken ' || {id})
END
