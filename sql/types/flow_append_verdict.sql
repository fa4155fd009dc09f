-- flow_append_verdict: what becomes of one element of an append batch.
-- base is the head before the append, null when the run does not exist; terminal says whether the
-- run had ended before.
CREATE TYPE flow_append_verdict AS (
    outcome text,
    base bigint,
    is_terminal boolean,
    detail json
);

COMMENT ON TYPE flow_append_verdict IS 'What becomes of one element of an append batch.';
