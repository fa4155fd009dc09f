-- flow_runs: one row a run, the head of its stream and its line on the list page.
-- Maintained by the projection of flow_events in the transaction of the append.
CREATE TABLE flow_runs (
    run_id text COLLATE "C" NOT NULL,
    workflow_name text COLLATE "C" NOT NULL,
    workflow_version text COLLATE "C" NOT NULL,
    runtime_build text COLLATE "C",
    queue text COLLATE "C" NOT NULL DEFAULT 'default',
    status text COLLATE "C" NOT NULL,
    head_sequence bigint NOT NULL,
    lease_epoch bigint NOT NULL DEFAULT 0,
    blocked_reason text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    ended_at timestamptz,
    dead_letter_id bigint,
    priority smallint NOT NULL DEFAULT 0,
    concurrency_key text COLLATE "C",
    attributes jsonb,
    listed_as text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
        CASE WHEN status IN ('pending', 'running', 'suspended') THEN 'open' ELSE status END) STORED,
    CONSTRAINT flow_runs_pkey PRIMARY KEY (run_id),
    CONSTRAINT flow_runs_status_check CHECK (status IN (
        'pending', 'running', 'suspended', 'cancelling',
        'completed', 'failed', 'cancelled', 'continued_as_new')),
    CONSTRAINT flow_runs_head_sequence_check CHECK (head_sequence >= 0)
) WITH (
    -- every append updates the row; half-empty pages keep those updates heap-only
    fillfactor = 50,
    -- a table of many ended runs has few live updates: do not wait for a share of the whole
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.02
);

-- The list page, newest first, whole or by one filter. Nothing an ordinary append changes is
-- indexed, so a step stays a heap-only update; nor is what changes when a run starts, is suspended
-- or goes on, so status itself must be in no index, not even in the condition of one.
-- POSIX is C by another name: the same order, but an index that a filtered page cannot be tempted
-- to walk when the statistics are out of date.
CREATE INDEX flow_runs_created_idx ON flow_runs (created_at DESC, run_id COLLATE "POSIX");
CREATE INDEX flow_runs_listed_idx ON flow_runs (listed_as, created_at DESC, run_id);
CREATE INDEX flow_runs_workflow_idx ON flow_runs (workflow_name, created_at DESC, run_id);
CREATE INDEX flow_runs_blocked_idx ON flow_runs (created_at DESC, run_id)
    WHERE blocked_reason IS NOT NULL;
-- Which builds still have open runs.
CREATE INDEX flow_runs_build_idx ON flow_runs (runtime_build, created_at)
    WHERE runtime_build IS NOT NULL AND ended_at IS NULL;

COMMENT ON TABLE flow_runs
    IS 'One row a run: head of the stream, fence, and what the list page shows.';
COMMENT ON COLUMN flow_runs.run_id IS 'Id of the run.';
COMMENT ON COLUMN flow_runs.workflow_name IS 'Name of the workflow, from the spec.';
COMMENT ON COLUMN flow_runs.workflow_version IS 'Version of the workflow, from the spec.';
COMMENT ON COLUMN flow_runs.runtime_build
    IS 'Build the run is pinned to, from the spec; null when any build will do.';
COMMENT ON COLUMN flow_runs.queue IS 'Queue its drive task goes to.';
COMMENT ON COLUMN flow_runs.status
    IS 'Status after the last event; suspended is running with something awaited from elsewhere.';
COMMENT ON COLUMN flow_runs.head_sequence IS 'Sequence of the last event.';
COMMENT ON COLUMN flow_runs.lease_epoch
    IS 'Fence: grows with every lease of the run; an append with an older epoch is refused.';
COMMENT ON COLUMN flow_runs.blocked_reason
    IS 'Why no worker can drive the run at present; cleared by the next append or release.';
COMMENT ON COLUMN flow_runs.created_at IS 'Time of the first event.';
COMMENT ON COLUMN flow_runs.updated_at IS 'Time of the last event.';
COMMENT ON COLUMN flow_runs.ended_at IS 'Time of the terminal event; null while the run is open.';
COMMENT ON COLUMN flow_runs.dead_letter_id
    IS 'Dead letter of its drive task: until that is redriven, nothing wakes the run.';
COMMENT ON COLUMN flow_runs.priority IS 'Priority of its drive tasks; smaller is claimed first.';
COMMENT ON COLUMN flow_runs.attributes
    IS 'What the workflow set with set_attributes; null when it set nothing.';
COMMENT ON COLUMN flow_runs.listed_as
    IS 'What lists by status go by: open for pending, running and suspended, else the status.';
COMMENT ON COLUMN flow_runs.concurrency_key
    IS 'Runs of one key in one queue share its limit of leases.';
