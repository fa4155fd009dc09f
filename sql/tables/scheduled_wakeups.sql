-- scheduled_wakeups: the deadlines of open runs, and their steps in other queues, with or without
-- one.
-- A due row is turned into a drive task once (dispatched_at) and goes when the event that settles
-- it is appended, or when its run ends or is asked to cancel.
CREATE TABLE scheduled_wakeups (
    run_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    dispatched_at timestamptz,
    CONSTRAINT scheduled_wakeups_pkey PRIMARY KEY (run_id, kind, subject_id),
    CONSTRAINT scheduled_wakeups_kind_check
        CHECK (kind IN ('wait', 'step_retry', 'hook_expiry', 'step_deadline'))
) WITH (
    -- the due scan walks the index from its start, where the dead rows are: vacuum early, by count
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- A row is in exactly one of the two: the scheduler reads the first, readers merge both.
CREATE INDEX scheduled_wakeups_due_idx ON scheduled_wakeups (due_at, run_id, kind, subject_id)
    WHERE dispatched_at IS NULL;
CREATE INDEX scheduled_wakeups_dispatched_idx
    ON scheduled_wakeups (due_at, run_id, kind, subject_id)
    WHERE dispatched_at IS NOT NULL;

COMMENT ON TABLE scheduled_wakeups IS 'Deadlines of open runs.';
COMMENT ON COLUMN scheduled_wakeups.run_id IS 'Run that waits.';
COMMENT ON COLUMN scheduled_wakeups.kind
    IS 'wait, step_retry, hook_expiry, or step_deadline for a step in another queue.';
COMMENT ON COLUMN scheduled_wakeups.subject_id IS 'The wait, step or hook.';
COMMENT ON COLUMN scheduled_wakeups.due_at
    IS 'Deadline, rounded up to microseconds; infinity for a step that has none.';
COMMENT ON COLUMN scheduled_wakeups.dispatched_at
    IS 'When a drive task was made of it; null until then.';
