-- flow_lanes: which (queue, priority, build) there are or were tasks of, and from where on it makes
-- sense to look. A claim reads each lane of flow_tasks_ready_idx from its mark: behind an old
-- snapshot the index keeps the entries of all tasks that were claimed since, and below the mark
-- there are no others.
CREATE TABLE flow_lanes (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    runtime_build text COLLATE "C" NOT NULL,
    low_water timestamptz NOT NULL DEFAULT '-infinity',
    moved_at timestamptz NOT NULL DEFAULT 'epoch',
    swept_at timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT flow_lanes_pkey PRIMARY KEY (queue, priority, runtime_build)
) WITH (
    -- a few rows, each updated every few seconds at most
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

COMMENT ON TABLE flow_lanes IS 'The lanes of queues, and from where on a claim reads them.';
COMMENT ON COLUMN flow_lanes.queue IS 'Queue name.';
COMMENT ON COLUMN flow_lanes.priority IS 'Priority of the tasks of the lane.';
COMMENT ON COLUMN flow_lanes.runtime_build IS 'Build of the tasks of the lane; empty for any.';
COMMENT ON COLUMN flow_lanes.low_water IS 'No task of the lane became available before this time.';
COMMENT ON COLUMN flow_lanes.moved_at IS 'When the mark was last looked at.';
COMMENT ON COLUMN flow_lanes.swept_at
    IS 'When the lane was last read below its mark, for tasks that were committed late.';
