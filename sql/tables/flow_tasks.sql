-- flow_tasks: the queue. At most one open drive task a run; it is deleted when its holder releases
-- the run and nothing woke it meanwhile. Rows are narrow: payloads live in flow_events.
-- Whoever touches a run's task holds the run lock, or never waits (claim, heartbeat).
CREATE TABLE flow_tasks (
    task_id bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL DEFAULT 'drive_run',
    payload json,
    priority smallint NOT NULL DEFAULT 0,
    available_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    lease_owner text,
    lease_expires_at timestamptz,
    epoch bigint,
    wakes bigint NOT NULL DEFAULT 1,
    enqueued_at timestamptz NOT NULL,
    CONSTRAINT flow_tasks_pkey PRIMARY KEY (task_id),
    CONSTRAINT flow_tasks_lease_check
        CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL))
) WITH (
    -- a short-lived table: vacuum by count, never by a share of a size that is mostly zero
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE UNIQUE INDEX flow_tasks_drive_idx ON flow_tasks (run_id) WHERE kind = 'drive_run';
-- What can be claimed, in the order of claiming; leased tasks are not in the way.
CREATE INDEX flow_tasks_ready_idx ON flow_tasks (queue, priority, available_at, task_id)
    WHERE lease_owner IS NULL;
-- Leases, to find the expired ones.
CREATE INDEX flow_tasks_leased_idx ON flow_tasks (queue, lease_expires_at, task_id)
    WHERE lease_owner IS NOT NULL;

COMMENT ON TABLE flow_tasks IS 'The queue of work for workers.';
COMMENT ON COLUMN flow_tasks.task_id IS 'Identity; ties in the order of claiming are broken by it.';
COMMENT ON COLUMN flow_tasks.queue IS 'Queue name.';
COMMENT ON COLUMN flow_tasks.run_id IS 'Run the task belongs to.';
COMMENT ON COLUMN flow_tasks.kind IS 'drive_run: replay the run and carry out what it decides.';
COMMENT ON COLUMN flow_tasks.payload IS 'Argument of kinds that need one.';
COMMENT ON COLUMN flow_tasks.priority IS 'Smaller numbers are claimed first.';
COMMENT ON COLUMN flow_tasks.available_at IS 'Not claimed before this time.';
COMMENT ON COLUMN flow_tasks.attempts
    IS 'Claims since the task was last given back in good order; counts lost workers.';
COMMENT ON COLUMN flow_tasks.lease_owner IS 'Who holds the lease; null when nobody does.';
COMMENT ON COLUMN flow_tasks.lease_expires_at
    IS 'When the lease ends unless a heartbeat extends it.';
COMMENT ON COLUMN flow_tasks.epoch
    IS 'Fence of the lease, equal to flow_runs.lease_epoch while it is valid.';
COMMENT ON COLUMN flow_tasks.wakes
    IS 'Counts the reasons to look at the run; a release with an older count is refused.';
COMMENT ON COLUMN flow_tasks.enqueued_at IS 'When the task was made.';
