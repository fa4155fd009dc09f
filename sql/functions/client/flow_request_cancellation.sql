-- flow_request_cancellation: asks a run to clean up and end; its open waits, hooks and retries are
-- cancelled at once.
-- Arguments: p_run_id; p_reason, free text or null.
-- Returns run_id, subject_id (null), applied and the head. The same request again, or one for a run
--   that has ended, is not applied.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF002 it was requested with another reason; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_request_cancellation(p_run_id text, p_reason text DEFAULT NULL)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_request json;
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    IF NOT flow_is_terminal(v_status) THEN
        SELECT flow_json_get(e.payload, 'request') INTO v_request
          FROM flow_event_log AS e
         WHERE e.run_id = p_run_id AND e.event_type = 'run_cancellation_requested'
           AND e.subject_id IS NULL
         LIMIT 1;
        IF NOT FOUND THEN
            v_head := flow_write_event(p_run_id, v_head, 'run_cancellation_requested', NULL,
                CASE WHEN p_reason IS NULL THEN '{"request":{}}'
                     ELSE format('{"request":{"reason":%s}}', to_json(p_reason)) END);
            RETURN QUERY SELECT p_run_id, NULL::text, true, v_head;
            RETURN;
        END IF;
        IF flow_json_get_text(v_request, 'reason') IS DISTINCT FROM p_reason THEN
            PERFORM flow_raise_conflict(p_run_id, 'cancellation was requested with another reason');
        END IF;
    END IF;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN QUERY SELECT p_run_id, NULL::text, false, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_request_cancellation(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_request_cancellation(text, text) IS 'Asks a run to clean up and end.';
