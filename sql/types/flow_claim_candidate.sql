-- flow_claim_candidate: a task whose row a claim has locked, with what the claim decides by.
CREATE TYPE flow_claim_candidate AS (
    task_id bigint,
    run_id text COLLATE "C",
    kind text COLLATE "C",
    priority smallint,
    available_at timestamptz,
    concurrency_key text COLLATE "C",
    crashed boolean,
    is_dead boolean
);

COMMENT ON TYPE flow_claim_candidate IS 'A task whose row a claim has locked.';
