-- flow_events: the event streams, the only authority; every other table can be rebuilt from it.
-- Append-only by trigger and by grants. The key is also the last guard against two writers.
CREATE TABLE flow_events (
    run_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    event_type text COLLATE "C" NOT NULL,
    subject_id text COLLATE "C",
    due_at timestamptz,
    payload json NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT flow_now(),
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    schema_version smallint,
    CONSTRAINT flow_events_pkey PRIMARY KEY (run_id, sequence),
    -- one constraint, because each costs every statement its planning; the guard trigger refuses
    -- the same rows first, without showing them
    CONSTRAINT flow_events_shape_check CHECK (
        sequence >= 1
        AND (subject_id IS NOT NULL OR starts_with(event_type, 'run_'))
        AND (due_at IS NOT NULL OR event_type <> 'wait_created')
        AND (schema_version IS NULL OR schema_version >= 1))
) WITH (
    -- rows are never updated: pages may be full
    fillfactor = 100,
    -- there are no dead rows to wait for; vacuum only freezes and sets the visibility map, and
    -- doing so every 50,000 inserted rows keeps each pass short
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.02
);

-- What client verbs look up by subject. Steps, the bulk of a history, stay out of it.
CREATE INDEX flow_events_subject_idx ON flow_events (run_id, subject_id)
    WHERE event_type IN (
        'wait_created', 'wait_completed', 'hook_created', 'hook_received', 'hook_disposed',
        'run_progress_recorded', 'child_operation_linked', 'run_cancellation_requested',
        'signal_received', 'update_applied');

COMMENT ON TABLE flow_events IS 'The event streams of all runs, append-only; the only authority.';
COMMENT ON COLUMN flow_events.run_id IS 'The run whose stream this is.';
COMMENT ON COLUMN flow_events.sequence IS 'Place in the stream, from 1, without gaps.';
COMMENT ON COLUMN flow_events.event_id
    IS 'Identity of the event; derived from run and sequence when the writer gave none.';
COMMENT ON COLUMN flow_events.event_type
    IS 'What happened, in snake case, for example step_completed.';
COMMENT ON COLUMN flow_events.subject_id
    IS 'The step, wait, hook, link or progress id the event is about; null for events of the run '
       'itself.';
COMMENT ON COLUMN flow_events.due_at
    IS 'Deadline the event sets (wait, retry, hook expiry), rounded up to microseconds.';
COMMENT ON COLUMN flow_events.payload
    IS 'The event object without its type member, text kept verbatim. Holds hook tokens and user '
       'data.';
COMMENT ON COLUMN flow_events.recorded_at
    IS 'Database time of the append; equal for all events of one append.';
COMMENT ON COLUMN flow_events.transaction_id
    IS 'Transaction that wrote the row; lets a reader follow commits without gaps.';
COMMENT ON COLUMN flow_events.schema_version
    IS 'Envelope schema version as on the wire; null means that it was absent and is read as 1.';
