-- flow_end_run: ends a run at once with a terminal event; what the three ending verbs share.
-- Arguments: p_run_id, p_event_type, p_payload. Returns run_id, subject_id (null), applied and the
--   head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF012, WF013. Callers: internal.
CREATE FUNCTION flow_end_run(p_run_id text, p_event_type text, p_payload text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    IF flow_is_terminal(v_status) THEN
        RETURN QUERY SELECT p_run_id, NULL::text, false, v_head;
    ELSE
        v_head := flow_write_event(p_run_id, v_head, p_event_type, NULL, p_payload);
        RETURN QUERY SELECT p_run_id, NULL::text, true, v_head;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_end_run(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_end_run(text, text, text) IS 'Ends a run at once with a terminal event.';
