-- One attempt at the migration lock of a schema, held until the end of the transaction. The holder
-- then stays idle in this transaction without a snapshot, so it holds up neither CREATE INDEX
-- CONCURRENTLY nor vacuum, and works through a transaction pooler.
SELECT pg_catalog.pg_try_advisory_xact_lock(
    pg_catalog.hashtextextended('flowpg migrate ' || {schema_name}, 0)
) AS locked,
pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true) AS idle_timeout,
(
    -- A setting since PostgreSQL 17.
    SELECT pg_catalog.set_config(name, '0', true)
    FROM pg_catalog.pg_settings
    WHERE name = 'transaction_timeout'
) AS transaction_timeout;
