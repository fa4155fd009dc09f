-- flow_lanes: which (queue, priority, build) there are or were tasks of, and from where on it makes
-- sense to look. A claim reads each lane of flow_tasks_ready_idx from its mark: behind an old
-- snapshot the index keeps the entries of all tasks that were claimed since, and below the mark
-- there are no others.
-- Whoever makes a task and sees no row of its lane adds one, whatever others are adding at the
-- moment, so nobody waits and no lane is left out; the lowest mark counts, and claims remove the
-- doubles.
-- A claim that names workflows or kinds passes over tasks that it does not take. So that they need
-- not be read again each time, such claims have marks of their own beside those of the lanes: rows
-- with a digest of what they name, below whose mark there is nothing that they take.
CREATE TABLE flow_lanes (
    lane_id bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    runtime_build text COLLATE "C" NOT NULL,
    takes text COLLATE "C" NOT NULL DEFAULT '',
    low_water timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT flow_lanes_pkey PRIMARY KEY (lane_id)
) WITH (
    -- a few rows, each updated every few seconds at most
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

CREATE INDEX flow_lanes_lane_idx ON flow_lanes (queue, priority, runtime_build);

COMMENT ON TABLE flow_lanes IS 'The lanes of queues, and from where on a claim reads them.';
COMMENT ON COLUMN flow_lanes.lane_id IS 'Identity.';
COMMENT ON COLUMN flow_lanes.queue IS 'Queue name.';
COMMENT ON COLUMN flow_lanes.priority IS 'Priority of the tasks of the lane.';
COMMENT ON COLUMN flow_lanes.runtime_build IS 'Build of the tasks of the lane; empty for any.';
COMMENT ON COLUMN flow_lanes.takes
    IS 'Digest of the workflows and kinds that a claim names; empty for the lane itself.';
COMMENT ON COLUMN flow_lanes.low_water
    IS 'No task of the lane, or none that such a claim takes, became available before this time.';
