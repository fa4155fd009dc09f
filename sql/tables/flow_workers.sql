-- flow_workers: who says that it is alive, and what it can do. Operators and waiting_for read it;
-- no lease depends on it.
CREATE TABLE flow_workers (
    worker_id text COLLATE "C" NOT NULL,
    runtime_build text COLLATE "C",
    builds text[] COLLATE "C",
    accepts_unpinned boolean NOT NULL DEFAULT true,
    host text COLLATE "C" NOT NULL,
    pid integer NOT NULL,
    queues text[] COLLATE "C" NOT NULL,
    workflows text[] COLLATE "C",
    steps text[] COLLATE "C",
    slots integer NOT NULL,
    running integer NOT NULL,
    started_at timestamptz NOT NULL,
    last_beat timestamptz NOT NULL,
    beat_every interval NOT NULL,
    CONSTRAINT flow_workers_pkey PRIMARY KEY (worker_id)
) WITH (
    -- a row a worker, updated in place
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_workers IS 'Workers that say that they are alive.';
COMMENT ON COLUMN flow_workers.worker_id IS 'Name that is unique to the process.';
COMMENT ON COLUMN flow_workers.runtime_build IS 'Build the worker runs.';
COMMENT ON COLUMN flow_workers.builds IS 'Builds whose runs it drives; null for all.';
COMMENT ON COLUMN flow_workers.accepts_unpinned IS 'Whether it drives runs of no build.';
COMMENT ON COLUMN flow_workers.host IS 'Host name.';
COMMENT ON COLUMN flow_workers.pid IS 'Process id on that host.';
COMMENT ON COLUMN flow_workers.queues IS 'Queues it claims from.';
COMMENT ON COLUMN flow_workers.workflows IS 'Workflows it knows; null for all.';
COMMENT ON COLUMN flow_workers.steps IS 'Steps it knows; null for all.';
COMMENT ON COLUMN flow_workers.slots IS 'How many runs it drives at a time.';
COMMENT ON COLUMN flow_workers.running IS 'How many it drove at the last beat.';
COMMENT ON COLUMN flow_workers.started_at IS 'Time of the first beat.';
COMMENT ON COLUMN flow_workers.last_beat IS 'Time of the last beat.';
COMMENT ON COLUMN flow_workers.beat_every
    IS 'How often it means to beat; alive until three are missed.';
