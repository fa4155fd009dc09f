-- flow_record_progress: records a progress report of a run.
-- Arguments: p_run_id; p_progress, an object with progress_id (not blank), completed (a whole
--   number from 0), total (null, or at least 1 and not less than completed), message, details.
-- Returns run_id, subject_id (the progress id), applied and the head. The same report again is not
--   applied again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004; WF009 the report is not valid; WF011 its id holds another report; WF012;
--   WF013. Callers: client, worker.
CREATE FUNCTION flow_record_progress(p_run_id text, p_progress json)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_progress_id json := flow_json_get(p_progress, 'progress_id');
    v_id text;
    v_completed text := flow_json_get(p_progress, 'completed')::text;
    v_total text := coalesce(flow_json_get(p_progress, 'total')::text, 'null');
    v_message text := json_typeof(flow_json_get(p_progress, 'message'));
BEGIN
    IF json_typeof(p_progress) IS DISTINCT FROM 'object'
        OR NOT flow_json_is_name(v_progress_id, 512)
    THEN
        PERFORM flow_raise_transition(p_run_id, 'a progress report needs a progress_id: a string, '
            'not blank, of at most 512 characters');
    END IF;
    v_id := v_progress_id #>> '{}';
    IF flow_json_refusal(p_progress) IS NOT NULL THEN
        PERFORM flow_raise_transition(p_run_id,
            format('progress %s cannot be read: %s', v_id, flow_json_refusal(p_progress)));
    -- 1.0, 1e3 and "1" are whole to some languages and not to others
    ELSIF v_completed IS NULL OR v_completed !~ '^-?[0-9]+$' OR v_total !~ '^(-?[0-9]+|null)$' THEN
        PERFORM flow_raise_transition(p_run_id, format('progress %s needs whole numbers, '
            'written without a fraction or exponent: completed, and total if there is one', v_id));
    ELSIF v_completed::numeric < 0 OR nullif(v_total, 'null')::numeric < 1
        OR v_completed::numeric > nullif(v_total, 'null')::numeric
    THEN
        PERFORM flow_raise_transition(p_run_id, format(
            'progress %s needs whole numbers: completed from 0 to total, total from 1', v_id));
    ELSIF v_message NOT IN ('string', 'null') THEN
        PERFORM flow_raise_transition(p_run_id,
            format('progress %s has a message that is not a string', v_id));
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.subject_id, r.applied, r.head_sequence
      FROM flow_record_once(p_run_id, NULL, 'run_progress_recorded', v_id, 'progress',
               p_progress) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_record_progress(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_progress(text, json) IS 'Records a progress report of a run.';
