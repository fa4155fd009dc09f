-- flow_redelivered: what a verb does when its event is there already: wakes the run, in case the
-- drive of the first delivery was lost, unless the run has ended.
-- Arguments: p_run_id, p_status. Locks: the queue row; the run lock is the caller's.
-- SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_redelivered(p_run_id text, p_status text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT flow_is_terminal(p_status) THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_redelivered(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_redelivered(text, text) IS 'Wakes a run for a repeated verb.';
