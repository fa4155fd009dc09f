-- flow_resume_wait: completes a wait whose deadline has passed.
-- Arguments: p_run_id, p_wait_id.
-- Returns run_id, subject_id (the wait), applied and the head. A wait that was completed already,
--   or cancelled by its workflow, a cancellation request or the end of its run, is not applied
--   again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the wait is unknown and the run has ended; WF009 the wait is unknown, or
--   not due yet; WF010; WF013. Callers: client, worker.
CREATE FUNCTION flow_resume_wait(p_run_id text, p_wait_id text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_due timestamptz;
BEGIN
    IF p_wait_id IS NULL THEN
        PERFORM flow_raise_argument('p_wait_id', 'it is null');
    END IF;
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    SELECT w.due_at INTO v_due
      FROM scheduled_wakeups AS w
     WHERE w.run_id = p_run_id AND w.kind = 'wait' AND w.subject_id = p_wait_id;
    IF FOUND THEN
        IF v_due > flow_now() THEN
            PERFORM flow_raise_transition(p_run_id,
                format('wait %s is not due before %s', p_wait_id, flow_time_text(v_due)));
        END IF;
        v_head := flow_write_event(p_run_id, v_head, 'wait_completed', p_wait_id,
            format('{"wait_id":%s}', to_json(p_wait_id)));
        RETURN QUERY SELECT p_run_id, p_wait_id, true, v_head;
        RETURN;
    END IF;

    PERFORM FROM flow_event_log AS e
      WHERE e.run_id = p_run_id AND e.subject_id = p_wait_id AND e.event_type = 'wait_created';
    IF NOT FOUND THEN
        IF flow_is_terminal(v_status) THEN
            PERFORM flow_raise_terminal(p_run_id, v_status);
        END IF;
        PERFORM flow_raise_transition(p_run_id, format('wait %s does not exist', p_wait_id));
    END IF;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN QUERY SELECT p_run_id, p_wait_id, false, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_wait(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_wait(text, text) IS 'Completes a wait whose deadline has passed.';
