-- flow_read_step_tasks: the attempts of steps that an array names.
-- Arguments: p_steps, as flow_route_steps takes it. Checked here, because the constraints of the
-- tables would show the row.
-- Locks: none. SQLSTATEs: WF010. Callers: internal.
CREATE FUNCTION flow_read_step_tasks(p_steps json) RETURNS flow_step_task[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_steps flow_step_task[];
    v_are_whole boolean;
BEGIN
    BEGIN
        SELECT array_agg(ROW(s.step_id, s.step_name, s.attempt, s.queue, s.due_in_us,
                   flow_deadline(s.due_at))::flow_step_task),
               bool_and((octet_length(s.step_id) BETWEEN 1 AND 2048
                         AND octet_length(s.step_name) BETWEEN 1 AND 2048
                         AND s.attempt > 0 AND octet_length(s.queue) BETWEEN 1 AND 255
                         AND btrim(s.queue) <> ''
                         AND coalesce(abs(s.due_in_us / 1000), 0) <= 250000000000000) IS TRUE)
          INTO v_steps, v_are_whole
          FROM json_to_recordset(p_steps)
               AS s (step_id text, step_name text, attempt integer, queue text,
                     due_in_us bigint, due_at text);
    EXCEPTION WHEN data_exception THEN
        v_are_whole := false;
    END;
    IF NOT v_are_whole THEN
        PERFORM flow_raise_argument('p_steps', 'it must be an array of {"step_id", "step_name", '
            '"attempt", "queue", "due_in_us"?, "due_at"?}, none left out, blank, or too long');
    END IF;
    RETURN v_steps;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_read_step_tasks(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_read_step_tasks(json)
    IS 'The attempts that an array of them names.';
