-- flow_step_task: one attempt of a step that is left to the workers of another queue, and when its
-- run is to be woken: the earlier of a time counted from the append and a fixed one.
CREATE TYPE flow_step_task AS (
    step_id text COLLATE "C",
    step_name text COLLATE "C",
    attempt integer,
    queue text COLLATE "C",
    due_in_us bigint,
    due_at timestamptz
);

COMMENT ON TYPE flow_step_task IS 'One attempt of a step that is left to another queue.';
