-- flow_tasks: the queue. At most one open drive task a run; it is deleted when its holder releases
-- the run and nothing woke it meanwhile. Other kinds carry out a step, or
-- one verb of a client later.
-- Whoever touches a run's drive task holds the run lock, or never waits (claim, heartbeat).
CREATE TABLE flow_tasks (
    task_id bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
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
    crashes integer NOT NULL DEFAULT 0,
    runtime_build text COLLATE "C" NOT NULL DEFAULT '',
    workflow_name text COLLATE "C",
    concurrency_key text COLLATE "C",
    dedupe_key text COLLATE "C",
    dedupe_until timestamptz,
    max_attempts integer,
    max_stalled integer,
    retry_delay interval,
    timeout interval,
    keep boolean NOT NULL DEFAULT false,
    last_error text COLLATE "C",
    missing_step text COLLATE "C",
    CONSTRAINT flow_tasks_pkey PRIMARY KEY (task_id),
    CONSTRAINT flow_tasks_kind_check CHECK (kind IN (
        'drive_run', 'resume_wait', 'resume_hook', 'resume_hook_by_token', 'dispose_hook',
        'dispose_hook_by_token', 'resume_scheduled_run', 'resume_due_waits',
        'resume_due_retries', 'run_step')),
    CONSTRAINT flow_tasks_run_check CHECK ((run_id IS NULL) = (kind IN (
        'resume_hook_by_token', 'dispose_hook_by_token', 'resume_due_waits',
        'resume_due_retries'))),
    CONSTRAINT flow_tasks_lease_check
        CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL))
) WITH (
    -- a short-lived table: vacuum by count, never by a share of a size that is mostly zero
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    -- payloads of any length move out of the way of the claim
    toast_tuple_target = 256
);

CREATE UNIQUE INDEX flow_tasks_drive_idx ON flow_tasks (run_id) WHERE kind = 'drive_run';
CREATE INDEX flow_tasks_step_idx ON flow_tasks (run_id) WHERE kind = 'run_step';
CREATE UNIQUE INDEX flow_tasks_dedupe_idx ON flow_tasks (dedupe_key) WHERE dedupe_key IS NOT NULL;
-- What can be claimed, lane by lane, in the order of claiming; leased tasks are not in the way.
CREATE INDEX flow_tasks_ready_idx
    ON flow_tasks (queue, priority, runtime_build, available_at, task_id)
    WHERE lease_owner IS NULL;
-- Leases: to find the expired ones, and to count the live ones.
-- Whoever looks a lease up by run or task asks whether lease_expires_at is there, which says the
-- same: lease_owner would let this index in, and a plan made while nothing was leased would walk
-- all leases for each one.
CREATE INDEX flow_tasks_leased_idx ON flow_tasks (queue, lease_expires_at, task_id)
    WHERE lease_owner IS NOT NULL;

COMMENT ON TABLE flow_tasks IS 'The queue of work for workers.';
COMMENT ON COLUMN flow_tasks.task_id IS 'Identity; ties in the order of claiming are broken by it.';
COMMENT ON COLUMN flow_tasks.queue IS 'Queue name.';
COMMENT ON COLUMN flow_tasks.run_id
    IS 'Run the task belongs to; null for kinds that address a token or all runs.';
COMMENT ON COLUMN flow_tasks.kind
    IS 'drive_run: replay the run; run_step: one attempt of a step; others: a client verb, later.';
COMMENT ON COLUMN flow_tasks.payload
    IS 'Argument of kinds that need one. That of a kind by token holds the token.';
COMMENT ON COLUMN flow_tasks.priority IS 'Smaller numbers are claimed first.';
COMMENT ON COLUMN flow_tasks.available_at IS 'Not claimed before this time.';
COMMENT ON COLUMN flow_tasks.attempts IS 'Claims, without those that were given back unused.';
COMMENT ON COLUMN flow_tasks.lease_owner IS 'Who holds the lease; null when nobody does.';
COMMENT ON COLUMN flow_tasks.lease_expires_at
    IS 'When the lease ends unless a heartbeat extends it.';
COMMENT ON COLUMN flow_tasks.epoch
    IS 'Fence of the lease, grows with each; for drive_run equal to flow_runs.lease_epoch.';
COMMENT ON COLUMN flow_tasks.wakes
    IS 'Counts the reasons to look; a release or completion that has seen fewer keeps the task.';
COMMENT ON COLUMN flow_tasks.enqueued_at IS 'When the task was made.';
COMMENT ON COLUMN flow_tasks.crashes IS 'Leases that expired: workers that were lost with it.';
COMMENT ON COLUMN flow_tasks.runtime_build
    IS 'Build that a worker must list to claim the task; empty when any will do.';
COMMENT ON COLUMN flow_tasks.workflow_name
    IS 'Workflow of the run, for claims by workflow; of a step, step: and its name.';
COMMENT ON COLUMN flow_tasks.concurrency_key
    IS 'Tasks of one key in one queue share its limit of leases.';
COMMENT ON COLUMN flow_tasks.dedupe_key
    IS 'Kind and SHA-256 of what is addressed; a second task of the key is not made.';
COMMENT ON COLUMN flow_tasks.dedupe_until
    IS 'From then on the key keeps no second task away; null: as long as this one is open.';
COMMENT ON COLUMN flow_tasks.max_attempts
    IS 'Failures after which it is a dead letter; null for 1.';
COMMENT ON COLUMN flow_tasks.max_stalled
    IS 'Crashes after which it is a dead letter; null for what the claim says.';
COMMENT ON COLUMN flow_tasks.retry_delay
    IS 'Delay after the first failure, doubled after each further one; null for none.';
COMMENT ON COLUMN flow_tasks.timeout IS 'How long one attempt may take; null for no limit.';
COMMENT ON COLUMN flow_tasks.keep IS 'Whether a line about it is kept in flow_finished_tasks.';
COMMENT ON COLUMN flow_tasks.missing_step
    IS 'Of a run: the step that the worker who gave it back did not have; null after a claim.';
COMMENT ON COLUMN flow_tasks.last_error IS 'What the last failed attempt said.';
