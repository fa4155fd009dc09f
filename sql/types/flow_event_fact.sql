-- flow_event_fact: what the projection needs to know of one stored event.
-- payload is filled only for run_created and hook_created.
CREATE TYPE flow_event_fact AS (
    run_id text,
    sequence bigint,
    event_type text,
    subject_id text,
    due_at timestamptz,
    payload json,
    recorded_at timestamptz
);

COMMENT ON TYPE flow_event_fact IS 'What the projection needs to know of one stored event.';
