-- flow_write_event: appends one event at the head of a run and wakes the run.
-- Arguments: p_run_id; p_head, its head as read under the run lock; p_event_type; p_subject_id,
--   null for events of the run itself; p_payload, the event object without its type.
-- Returns the new head.
-- Locks: those of the trigger, then the queue row; the run lock is the caller's.
-- SQLSTATEs: WF012, and those of the trigger. Callers: internal.
CREATE FUNCTION flow_write_event(
    p_run_id text, p_head bigint, p_event_type text, p_subject_id text, p_payload text
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_event_log
        (run_id, sequence, event_type, subject_id, payload, recorded_at)
    VALUES (p_run_id, p_head + 1, p_event_type, p_subject_id, p_payload::json,
            flow_now());
    PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    RETURN p_head + 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_write_event(text, bigint, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_write_event(text, bigint, text, text, text)
    IS 'Appends one event at the head of a run and wakes the run.';
