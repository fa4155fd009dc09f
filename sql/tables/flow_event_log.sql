-- flow_event_log: the event streams, the only authority; every other table can be rebuilt from it.
-- Append-only by trigger and by grants. Read it through the view flow_events, one row an event.
-- A row holds one event, or a bundle: the step events that stand together in one append, most of
-- every history. A row costs 75 bytes and two thirds of its time besides what it says, so a bundle
-- makes a history half as long. flow_unbundle takes it apart; event_type is null for it.
-- The wide columns come first: no byte is lost between them.
CREATE TABLE flow_event_log (
    sequence bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT flow_now(),
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    due_at timestamptz,
    event_id uuid,
    event_count integer NOT NULL DEFAULT 1,
    schema_version smallint,
    run_id text COLLATE "C" NOT NULL,
    event_type text COLLATE "C",
    subject_id text COLLATE "C",
    payload json NOT NULL,
    CONSTRAINT flow_event_log_pkey PRIMARY KEY (run_id, sequence)
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
CREATE INDEX flow_event_log_subject_idx ON flow_event_log (run_id, subject_id)
    WHERE event_type IN (
        'wait_created', 'wait_completed', 'hook_created', 'hook_received', 'hook_disposed',
        'hook_conflicted', 'run_progress_recorded', 'child_operation_linked',
        'run_cancellation_requested', 'signal_received', 'update_applied');

COMMENT ON TABLE flow_event_log
    IS 'The event streams of all runs, append-only, a row an event or a bundle of step events; '
       'read it through flow_events.';
COMMENT ON COLUMN flow_event_log.run_id IS 'The run whose stream this is.';
COMMENT ON COLUMN flow_event_log.sequence
    IS 'Place in the stream, from 1, without gaps; that of the last event of a bundle.';
COMMENT ON COLUMN flow_event_log.event_count
    IS 'Events in the row: those of a bundle are numbered up to its sequence.';
COMMENT ON COLUMN flow_event_log.event_id
    IS 'Identity of the event if its writer gave one; else it is derived from run and sequence.';
COMMENT ON COLUMN flow_event_log.event_type
    IS 'What happened, in snake case, for example run_completed; null for a bundle.';
COMMENT ON COLUMN flow_event_log.subject_id
    IS 'The step, wait, hook, link or progress id the event is about; null for events of the run '
       'itself, and for a bundle.';
COMMENT ON COLUMN flow_event_log.due_at
    IS 'Deadline the event sets (wait, retry, hook expiry), rounded up to microseconds.';
COMMENT ON COLUMN flow_event_log.payload
    IS 'The event object without its type member, text kept verbatim; of a bundle, an array for '
       'flow_unbundle. Holds hook tokens and user data.';
COMMENT ON COLUMN flow_event_log.recorded_at
    IS 'Database time of the append; equal for all events of one append.';
COMMENT ON COLUMN flow_event_log.transaction_id
    IS 'Transaction that wrote the row; lets a reader follow commits without gaps.';
COMMENT ON COLUMN flow_event_log.schema_version
    IS 'Envelope schema version as on the wire; null means that it was absent and is read as 1.';
