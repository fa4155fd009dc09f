-- A table with the columns and the key of flow_events, and nothing else: no trigger, no check, no
-- second index. Inserting into it is the server's own limit.
CREATE TABLE bare_events (
    run_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    event_type text COLLATE "C" NOT NULL,
    subject_id text COLLATE "C",
    due_at timestamptz,
    payload json NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    schema_version smallint,
    PRIMARY KEY (run_id, sequence)
);
