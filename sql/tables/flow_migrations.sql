-- flow_migrations: the applied revisions and the checksum of the SQL each one ran.
-- Serving processes compare it with what they were built for and never run DDL themselves.
CREATE TABLE flow_migrations (
    version text COLLATE "C" NOT NULL,
    sha256 text COLLATE "C" NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT flow_now(),
    CONSTRAINT flow_migrations_pkey PRIMARY KEY (version)
);

COMMENT ON TABLE flow_migrations IS 'Applied revisions and the checksum of their SQL.';
COMMENT ON COLUMN flow_migrations.version IS 'Revision.';
COMMENT ON COLUMN flow_migrations.sha256 IS 'SHA-256 of the SQL that was run, in hex.';
COMMENT ON COLUMN flow_migrations.applied_at IS 'When it was applied.';
