-- flow_run_change: what one append does to the row of one run.
-- flags is the union of flow_event_flags over its events; create_payload, created_at and
-- terminal_status are null unless the append holds such an event; is_broken says that its own
-- events cannot follow one another (a gap, run_created not first, something after the end).
CREATE TYPE flow_run_change AS (
    run_id text,
    first_sequence bigint,
    last_sequence bigint,
    flags integer,
    recorded_at timestamptz,
    create_payload json,
    created_at timestamptz,
    terminal_status text,
    is_broken boolean
);

COMMENT ON TYPE flow_run_change IS 'What one append does to the row of one run.';
