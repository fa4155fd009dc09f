-- flow_claim_candidate: a task whose row a claim has locked, with what orders it among others.
CREATE TYPE flow_claim_candidate AS (
    task_id bigint,
    run_id text,
    priority smallint,
    available_at timestamptz
);

COMMENT ON TYPE flow_claim_candidate IS 'A task whose row a claim has locked.';
