-- One migrator at a time. The same key as in try_lock.sql, so this script and `flowpg migrate` never
-- work at once. It tries and fails rather than waits: a waiter would hold a snapshot, and CREATE INDEX
-- CONCURRENTLY in the other migrator waits for every older snapshot.
SET LOCAL flowpg.schema = {schema_name};
DO $$
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock(
        pg_catalog.hashtextextended('flowpg migrate ' || pg_catalog.current_setting('flowpg.schema'), 0)
    ) THEN
        RAISE EXCEPTION 'another migration of this flowpg schema is running; run this again when it has ended'
            USING ERRCODE = 'lock_not_available';
    END IF;
END
$$;
