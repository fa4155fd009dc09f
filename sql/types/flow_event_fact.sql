-- flow_event_fact: what the projection needs to know of one row of flow_event_log.
-- flags are its flow_event_flags; payload is filled only for run_created and hook_created;
-- event_type is null for a bundle.
CREATE TYPE flow_event_fact AS (
    run_id text,
    sequence bigint,
    event_type text,
    subject_id text,
    due_at timestamptz,
    payload json,
    recorded_at timestamptz,
    event_count integer,
    flags integer
);

COMMENT ON TYPE flow_event_fact IS 'What the projection needs to know of one stored row.';
