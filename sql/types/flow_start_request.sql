-- flow_start_request: one run to be started.
-- refusal says why it cannot be started, as an object with sqlstate and reason, else null.
CREATE TYPE flow_start_request AS (
    ordinal integer,
    run_id text,
    spec json,
    input json,
    queue text,
    payload text,
    refusal json
);

COMMENT ON TYPE flow_start_request IS 'One run to be started.';
