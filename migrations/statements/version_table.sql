-- The table is alembic's; this ends the first revision.
COMMENT ON TABLE flow_alembic_version IS 'The newest applied revision, as alembic keeps it; flow_migrations has them all.';
COMMENT ON COLUMN flow_alembic_version.version_num IS 'Revision.';
