-- flow_import_event: one event of a history that is imported.
CREATE TYPE flow_import_event AS (
    sequence bigint,
    event_type text,
    subject_id text,
    due_at timestamptz,
    payload json,
    event_id uuid,
    recorded_at timestamptz,
    schema_version smallint
);

COMMENT ON TYPE flow_import_event IS 'One event of a history that is imported.';
