-- flow_append_element: one element of an append batch: the events of one run.
-- refusal says why the element cannot be stored whatever the state of its run is, as an object with
-- sqlstate and reason; null when nothing is wrong with it.
CREATE TYPE flow_append_element AS (
    ordinal integer,
    run_id text,
    expected bigint,
    epoch bigint,
    release bigint,
    queue text,
    event_count integer,
    creates boolean,
    has_token boolean,
    has_link boolean,
    refusal json,
    events flow_append_event[]
);

COMMENT ON TYPE flow_append_element IS 'One element of an append batch: the events of one run.';
