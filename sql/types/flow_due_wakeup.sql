-- flow_due_wakeup: a due wakeup whose row the scheduler has locked.
CREATE TYPE flow_due_wakeup AS (
    run_id text COLLATE "C",
    kind text COLLATE "C",
    subject_id text COLLATE "C",
    due_at timestamptz
);

COMMENT ON TYPE flow_due_wakeup IS 'A due wakeup whose row the scheduler has locked.';
