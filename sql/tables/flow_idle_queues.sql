-- flow_idle_queues: queues on which somebody said that it is idle and listens. Whoever enqueues
-- takes the hint away and notifies: one notification for each time that somebody became idle.
-- Unlogged: a crash of the server ends every listener's connection, and each says again that it
-- is idle.
CREATE UNLOGGED TABLE flow_idle_queues (
    queue text COLLATE "C" NOT NULL,
    idle_until timestamptz,
    notified_at timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT flow_idle_queues_pkey PRIMARY KEY (queue)
) WITH (
    -- a row a queue, updated often and in place
    fillfactor = 20,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_idle_queues IS 'Queues that somebody listens to with nothing to do.';
COMMENT ON COLUMN flow_idle_queues.queue IS 'Queue name.';
COMMENT ON COLUMN flow_idle_queues.idle_until
    IS 'Until when the hint is good; null when a notification has answered it.';
COMMENT ON COLUMN flow_idle_queues.notified_at IS 'When the last notification was sent.';
