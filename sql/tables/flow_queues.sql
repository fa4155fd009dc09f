-- flow_queues: what an operator has said about a queue. A queue without a row has no limits.
-- Limits are counted from live leases by whoever claims, so no slot can leak; a claim of a queue
-- with limits locks its row, and passes the queue over when another claim holds it.
CREATE TABLE flow_queues (
    queue text COLLATE "C" NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    max_running integer,
    max_per_key integer,
    rate_limit integer,
    rate_interval interval,
    rate_started_at timestamptz NOT NULL DEFAULT 'epoch',
    rate_used integer NOT NULL DEFAULT 0,
    notify boolean NOT NULL DEFAULT true,
    CONSTRAINT flow_queues_pkey PRIMARY KEY (queue),
    CONSTRAINT flow_queues_limits_check CHECK (
        max_running >= 0 AND max_per_key >= 1 AND rate_limit >= 0 AND rate_interval > '0'
        AND (rate_limit IS NULL) = (rate_interval IS NULL))
) WITH (
    -- the row of a queue with a rate is updated by every claim that takes something
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_queues IS 'Queues that are paused, limited, or never notified about.';
COMMENT ON COLUMN flow_queues.queue IS 'Queue name.';
COMMENT ON COLUMN flow_queues.paused IS 'Whether nothing is claimed from it.';
COMMENT ON COLUMN flow_queues.max_running IS 'Most live leases at a time; null for no limit.';
COMMENT ON COLUMN flow_queues.max_per_key
    IS 'Most live leases at a time of one concurrency key; null for no limit.';
COMMENT ON COLUMN flow_queues.rate_limit IS 'Most claims in rate_interval; null for no limit.';
COMMENT ON COLUMN flow_queues.rate_interval IS 'Length of the window of rate_limit.';
COMMENT ON COLUMN flow_queues.rate_started_at IS 'When the present window began.';
COMMENT ON COLUMN flow_queues.rate_used IS 'Claims in the present window.';
COMMENT ON COLUMN flow_queues.notify IS 'Whether idle listeners are told about new tasks.';
