-- flow_due_wakeup: a due wakeup whose row the scheduler has locked; place is where that row is, and
-- stays as long as the lock.
CREATE TYPE flow_due_wakeup AS (
    run_id text COLLATE "C",
    kind text COLLATE "C",
    subject_id text COLLATE "C",
    due_at timestamptz,
    place tid
);

COMMENT ON TYPE flow_due_wakeup IS 'A due wakeup whose row the scheduler has locked.';
