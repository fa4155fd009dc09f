-- flow_record_once: appends a record that has an id of its own, unless it is there; what
-- flow_record_progress and flow_link_child_operation share.
-- Arguments: p_run_id; p_also, further runs to lock and that must exist; p_event_type;
--   p_subject_id; p_member, the payload member that holds the record; p_value, the record.
-- Returns run_id, subject_id, applied and the head. The same value again is not applied again, also
--   after the end of the run.
-- Locks, in order: retention guard (shared), run locks, rows, queue row.
-- SQLSTATEs: WF001 (also for a run of p_also); WF004; WF011 the id holds another value; WF012;
--   WF013. Callers: internal.
CREATE FUNCTION flow_record_once(
    p_run_id text, p_also text, p_event_type text, p_subject_id text, p_member text, p_value json
) RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_stored json;
    v_what text := replace(p_member, 'child', 'child operation');
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head
      FROM flow_open_run(p_run_id, array_remove(ARRAY[p_also], NULL)) AS o;
    SELECT flow_json_get(e.payload, p_member) INTO v_stored
      FROM flow_event_log AS e
     WHERE e.run_id = p_run_id AND e.subject_id = p_subject_id AND e.event_type = p_event_type
       AND e.event_type IN ('run_progress_recorded', 'child_operation_linked')
     LIMIT 1;
    IF FOUND THEN
        IF NOT flow_json_equal(v_stored, p_value) THEN
            v_what := format('%s %s was recorded with another value', v_what, p_subject_id);
            PERFORM flow_raise('WF011', format('run %s: %s', p_run_id, v_what),
                jsonb_build_object('run_id', p_run_id, 'reason', v_what),
                'Give every record an id of its own and never change it.');
        END IF;
        PERFORM flow_redelivered(p_run_id, v_status);
        RETURN QUERY SELECT p_run_id, p_subject_id, false, v_head;
        RETURN;
    END IF;
    IF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_run_id, v_status);
    END IF;
    IF p_also IS NOT NULL THEN
        PERFORM FROM flow_runs AS r WHERE r.run_id = p_also AND r.head_sequence > 0;
        IF NOT FOUND THEN
            PERFORM flow_raise_not_found(p_also);
        END IF;
    END IF;
    v_head := flow_write_event(p_run_id, v_head, p_event_type, p_subject_id,
        format('{"%s":%s}', p_member, p_value));
    RETURN QUERY SELECT p_run_id, p_subject_id, true, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_record_once(text, text, text, text, text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_once(text, text, text, text, text, json)
    IS 'Appends a record that has an id of its own, unless it is there.';
