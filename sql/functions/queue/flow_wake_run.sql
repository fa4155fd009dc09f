-- flow_wake_run: asks for a run to be looked at.
-- Arguments: p_run_id. Returns whether the run was woken; one that has ended is not.
-- Locks, in order: retention guard (shared), run lock, queue row. SQLSTATEs: WF001, WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_wake_run(p_run_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_status text;
BEGIN
    SELECT o.status INTO v_status FROM flow_open_run(p_run_id, '{}') AS o;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN NOT flow_is_terminal(v_status);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_wake_run(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_wake_run(text) IS 'Asks for a run to be looked at.';
