-- How a migration begins that cannot run in a transaction (CREATE INDEX CONCURRENTLY). Its settings
-- are those of the session, so it needs a direct connection, not a transaction pooler.
-- No statement timeout: building an index takes as long as the table is large and blocks nobody.
SET lock_timeout = {lock_timeout};
SET statement_timeout = 0;
SET standard_conforming_strings = on;
SET quote_all_identifiers = off;
SET search_path = {schema}, pg_temp;
