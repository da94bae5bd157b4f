-- From the three columns of another program (key, value, expire_time timestamp) to the table that both can share. Run it
-- while no program holds a lock. '+08:00' is the offset with which that program writes its times.
BEGIN;
ALTER TABLE public.distribute_lock
    ALTER COLUMN key TYPE text COLLATE "C",
    ALTER COLUMN expire_time TYPE timestamp with time zone USING expire_time AT TIME ZONE INTERVAL '+08:00',
    ADD COLUMN token bigint NOT NULL
        DEFAULT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint,
    ADD COLUMN acquired_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    ADD COLUMN inbox text,
    ADD COLUMN waits bigint,
    ADD COLUMN in_turn boolean,
    ADD COLUMN waiters jsonb,
    ADD COLUMN name bytea;

-- Optional: no other program can delete a lock of distlock that is held, whatever its clock and its time zone say.
CREATE FUNCTION public.distribute_lock_keep() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER distribute_lock_keep BEFORE DELETE ON public.distribute_lock
    FOR EACH ROW WHEN (OLD.value LIKE '%#%' AND OLD.expire_time > pg_catalog.clock_timestamp())
    EXECUTE FUNCTION public.distribute_lock_keep();
COMMIT;
