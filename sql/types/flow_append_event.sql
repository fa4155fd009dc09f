-- flow_append_event: one event of an append, as read from the batch.
-- due_in_us: the deadline is the time of the append plus so many microseconds.
-- event_type null: a bundle of event_count step events, the last of them at event_position.
-- token and linked_run_id are taken out of the payload of hook_created and child_operation_linked.
CREATE TYPE flow_append_event AS (
    event_position integer,
    event_type text,
    subject_id text,
    due_at timestamptz,
    due_in_us bigint,
    payload json,
    event_id uuid,
    token text,
    linked_run_id text,
    event_count integer
);

COMMENT ON TYPE flow_append_event IS 'One event of an append, as read from the batch.';
