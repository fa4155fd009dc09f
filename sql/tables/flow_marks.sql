-- flow_marks: from where on it makes sense to read an index whose left edge only holds what is
-- done, as flow_lanes does for tasks. One row a queue for its leases, and one for all wakeups,
-- named ''. A row of a queue with a digest says when the lanes of such claims were looked at.
CREATE TABLE flow_marks (
    name text COLLATE "C" NOT NULL,
    takes text COLLATE "C" NOT NULL DEFAULT '',
    low_water timestamptz NOT NULL DEFAULT '-infinity',
    moved_at timestamptz NOT NULL DEFAULT 'epoch',
    swept_at timestamptz NOT NULL DEFAULT 'epoch',
    sweep_every interval NOT NULL DEFAULT '5 seconds',
    CONSTRAINT flow_marks_pkey PRIMARY KEY (name, takes)
) WITH (
    -- a few rows, each updated every few seconds at most
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

COMMENT ON TABLE flow_marks IS 'From where on the indexes of leases and wakeups are read.';
COMMENT ON COLUMN flow_marks.name IS 'A queue, for its leases, or nothing, for the wakeups.';
COMMENT ON COLUMN flow_marks.takes IS 'As flow_lanes.takes.';
COMMENT ON COLUMN flow_marks.low_water IS 'No lease expires and no wakeup is due before this time.';
COMMENT ON COLUMN flow_marks.moved_at IS 'When the mark was last looked at.';
COMMENT ON COLUMN flow_marks.swept_at
    IS 'When the index was last read below the mark, for rows that were committed late.';
COMMENT ON COLUMN flow_marks.sweep_every
    IS 'How long after that the next time comes: a hundred times what it took, at least 5 seconds.';
