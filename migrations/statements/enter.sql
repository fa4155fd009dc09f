-- How every transactional migration begins: bounded waits, then the schema as the only place where
-- names are made or found. A lock request that waits makes every later user of the table wait behind
-- it, so a migration gives up early and is run again.
SET LOCAL lock_timeout = {lock_timeout};
SET LOCAL statement_timeout = {statement_timeout};
-- What our texts say and what functions keep of the search_path must not depend on the database's
-- own settings.
SET LOCAL standard_conforming_strings = on;
SET LOCAL quote_all_identifiers = off;
SET LOCAL search_path = {schema}, pg_temp;
SET LOCAL flowpg.schema = {schema_name};
-- Not CREATE SCHEMA IF NOT EXISTS: that asks for CREATE on the database even where a DBA has made
-- the schema already and owns nothing else to the migrating role.
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_namespace
        WHERE nspname = pg_catalog.current_setting('flowpg.schema')
    ) THEN
        EXECUTE pg_catalog.format('CREATE SCHEMA %I', pg_catalog.current_setting('flowpg.schema'));
    END IF;
    -- Without USAGE the search_path would skip the schema in silence.
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_namespace
        WHERE nspname = pg_catalog.current_setting('flowpg.schema')
            AND pg_catalog.has_schema_privilege(oid, 'USAGE')
            AND pg_catalog.has_schema_privilege(oid, 'CREATE')
    ) THEN
        RAISE EXCEPTION 'permission denied for schema %', pg_catalog.current_setting('flowpg.schema')
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;
