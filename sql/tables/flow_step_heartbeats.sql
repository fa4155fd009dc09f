-- flow_step_heartbeats: what the latest heartbeat of a step at work said, for its next attempt.
-- A row is written at most every half second a worker, goes when its step has its outcome, and at
-- the latest when its run ends or is asked to cancel.
CREATE TABLE flow_step_heartbeats (
    run_id text COLLATE "C" NOT NULL,
    step_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    beat_at timestamptz NOT NULL,
    details json NOT NULL,
    CONSTRAINT flow_step_heartbeats_pkey PRIMARY KEY (run_id, step_id)
) WITH (
    -- the same few rows are written again and again
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

COMMENT ON TABLE flow_step_heartbeats IS 'Details of the latest heartbeats of steps at work.';
COMMENT ON COLUMN flow_step_heartbeats.run_id IS 'Run of the step.';
COMMENT ON COLUMN flow_step_heartbeats.step_id IS 'The step.';
COMMENT ON COLUMN flow_step_heartbeats.attempt IS 'Attempt that gave the heartbeat.';
COMMENT ON COLUMN flow_step_heartbeats.beat_at IS 'When it was recorded.';
COMMENT ON COLUMN flow_step_heartbeats.details IS 'What the step said, its text as it came.';
