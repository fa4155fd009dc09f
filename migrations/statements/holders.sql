-- Who uses a table of the schema right now: what a migration that ran out of its lock timeout most
-- likely waited for. Oldest transaction first.
SELECT a.pid, a.usename, a.state, pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - a.xact_start) AS age
FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid <> pg_catalog.pg_backend_pid()
    AND a.pid IN (
        SELECT l.pid
        FROM pg_catalog.pg_locks AS l
        INNER JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
        INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE l.locktype = 'relation'
            AND l.granted
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
            AND n.nspname = {schema_name}
            AND c.relkind IN ('r', 'p')
    )
ORDER BY a.xact_start
LIMIT 3;
