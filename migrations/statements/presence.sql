-- Which of the two tables that migrations keep about themselves exist in the schema, and which the
-- current role may read.
SELECT
    c.relname::text AS name,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS readable
FROM pg_catalog.pg_class AS c
INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = {schema_name} AND c.relname IN ('flow_migrations', 'flow_alembic_version') AND c.relkind = 'r';
