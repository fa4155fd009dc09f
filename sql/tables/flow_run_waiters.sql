-- flow_run_waiters: runs whose end somebody waits for, who wants to be told. Whatever ends a run
-- takes its row away and notifies. Unlogged: after a crash of the server those who wait look by
-- themselves, and say so again.
CREATE UNLOGGED TABLE flow_run_waiters (
    run_id text COLLATE "C" NOT NULL,
    waited_until timestamptz NOT NULL,
    CONSTRAINT flow_run_waiters_pkey PRIMARY KEY (run_id)
) WITH (
    -- a short-lived table: vacuum by count, never by a share of a size that is mostly zero
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000
);

COMMENT ON TABLE flow_run_waiters IS 'Runs whose end somebody wants to be told.';
COMMENT ON COLUMN flow_run_waiters.run_id IS 'Id of the run.';
COMMENT ON COLUMN flow_run_waiters.waited_until
    IS 'Until when somebody waits, unless that is said again.';
