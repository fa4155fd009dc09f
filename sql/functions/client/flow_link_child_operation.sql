-- flow_link_child_operation: records that a run is responsible for work somewhere else.
-- Arguments: p_run_id; p_child, an object with reference_id, kind and operation_id (not blank),
--   flow_run_id (null, or a run of this schema that exists), metadata.
-- Returns run_id, subject_id (the reference id), applied and the head. The same link again is not
--   applied again.
-- Locks, in order: retention guard (shared), both run locks, rows, queue row.
-- SQLSTATEs: WF001 the run, or the run it links, does not exist; WF004; WF009 the link is not
--   valid; WF011 its id holds another link; WF012; WF013. Callers: client, worker.
CREATE FUNCTION flow_link_child_operation(p_run_id text, p_child json)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_id json := flow_json_get(p_child, 'reference_id');
    v_kind json := flow_json_get(p_child, 'kind');
    v_operation json := flow_json_get(p_child, 'operation_id');
    v_linked json := flow_json_get(p_child, 'flow_run_id');
BEGIN
    IF json_typeof(p_child) IS DISTINCT FROM 'object'
        OR NOT flow_json_is_name(v_id, 512)
        OR NOT flow_json_is_name(v_kind, 512)
        OR NOT flow_json_is_name(v_operation, 512)
    THEN
        PERFORM flow_raise_transition(p_run_id, 'a child operation needs a reference_id, kind and '
            'operation_id: strings, not blank, of at most 512 characters');
    ELSIF json_typeof(v_linked) <> 'null' AND NOT flow_json_is_name(v_linked, 255) THEN
        PERFORM flow_raise_transition(p_run_id,
            'the flow_run_id of a child operation is not a run id');
    ELSIF flow_json_refusal(p_child) IS NOT NULL THEN
        PERFORM flow_raise_transition(p_run_id,
            format('a child operation cannot be read: %s', flow_json_refusal(p_child)));
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.subject_id, r.applied, r.head_sequence
      FROM flow_record_once(p_run_id, v_linked #>> '{}', 'child_operation_linked',
               v_id #>> '{}', 'child', p_child) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_link_child_operation(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_link_child_operation(text, json)
    IS 'Records that a run is responsible for work somewhere else.';
