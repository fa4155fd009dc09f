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
    v_id text;
    v_completed numeric;
    v_total numeric;
BEGIN
    BEGIN
        v_id := flow_json_get_text(p_progress, 'progress_id');
        v_completed := flow_json_get_text(p_progress, 'completed');
        v_total := flow_json_get_text(p_progress, 'total');
    EXCEPTION WHEN data_exception THEN
        v_id := NULL;
    END;
    IF json_typeof(p_progress) IS DISTINCT FROM 'object' OR coalesce(btrim(v_id), '') = ''
        OR octet_length(v_id) > 2048
    THEN
        PERFORM flow_raise_transition(p_run_id,
            'a progress report needs a progress_id that is not blank, and numbers');
    ELSIF v_completed IS NULL OR v_completed < 0 OR v_completed <> trunc(v_completed)
        OR v_total <> trunc(v_total) OR v_total < 1 OR v_completed > v_total
    THEN
        PERFORM flow_raise_transition(p_run_id, format(
            'progress %s needs whole numbers: completed from 0 to total, total from 1', v_id));
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.subject_id, r.applied, r.head_sequence
      FROM flow_record_once(p_run_id, NULL, 'run_progress_recorded', v_id, 'progress',
               p_progress) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_record_progress(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_progress(text, json) IS 'Records a progress report of a run.';
