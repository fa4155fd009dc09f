-- flow_start: starts one run.
-- Arguments: p_spec, an object with name and version; p_input, any JSON, passed to the workflow;
--   p_run_id, or null for a generated one (UUID version 7); p_queue, whose workers drive the run.
-- Returns run_id, subject_id (null), applied and the head. The same id with the same spec and input
--   is not applied again, also when the run has ended.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF002 the id has another spec or input; WF010; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_start(
    p_spec json, p_input json DEFAULT 'null', p_run_id text DEFAULT NULL,
    p_queue text DEFAULT 'default'
) RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
    v_queue text := coalesce(p_queue, 'default');
    v_payload text := '{"spec":' || p_spec || ',"input":' || coalesce(p_input, 'null') || '}';
BEGIN
    IF octet_length(v_payload) <= 1048576 AND NOT flow_json_is_hard(v_payload)
       AND flow_run_id_is_valid(coalesce(p_run_id, 'a')) AND flow_spec_refusal(p_spec) IS NULL
       AND flow_json_refusal(p_input) IS NULL
       AND btrim(v_queue) <> '' AND octet_length(v_queue) <= 255
    THEN
        -- nothing is wrong with it, so there is no batch to be taken apart
        SELECT s.run_id, s.outcome, s.head_sequence, s.detail::jsonb AS detail INTO v_done
          FROM flow_start_runs(ARRAY[ROW(1, coalesce(p_run_id, flow_uuid7()::text), p_spec,
                   coalesce(p_input, 'null'), v_queue, v_payload, NULL)::flow_start_request]) AS s;
        IF v_done.outcome = 'created' THEN
            RETURN QUERY VALUES (v_done.run_id, NULL::text, true, v_done.head_sequence);
            RETURN;
        ELSIF v_done.outcome = 'run_conflict' THEN
            PERFORM flow_raise_conflict(v_done.run_id, v_done.detail ->> 'reason');
        END IF;
        RETURN QUERY VALUES (v_done.run_id, NULL::text, false, v_done.head_sequence);
        RETURN;
    END IF;
    -- the bulk form knows the words for what is wrong
    SELECT s.run_id, s.outcome, s.head_sequence, s.detail::jsonb AS detail INTO v_done
      FROM flow_start_many(json_build_array(json_build_object(
               'run_id', p_run_id, 'spec', p_spec, 'input', p_input, 'queue', p_queue))) AS s;
    IF v_done.outcome = 'run_conflict' THEN
        PERFORM flow_raise_conflict(v_done.run_id, v_done.detail ->> 'reason');
    ELSIF v_done.outcome = 'invalid' THEN
        CASE v_done.detail ->> 'sqlstate'
            WHEN 'WF012' THEN PERFORM flow_raise_too_large(v_done.run_id, 'run_created',
                (v_done.detail ->> 'bytes')::integer);
            WHEN 'WF013' THEN PERFORM flow_raise_run_id(v_done.run_id);
            ELSE PERFORM flow_raise_argument(
                v_done.detail ->> 'argument', v_done.detail ->> 'reason');
        END CASE;
    END IF;
    RETURN QUERY
    SELECT v_done.run_id, NULL::text, v_done.outcome = 'created', v_done.head_sequence;
END
$$;

CREATE FUNCTION flow_raise_conflict(p_run_id text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF002', format('run %s conflicts: %s', p_run_id, p_reason),
        jsonb_build_object('run_id', p_run_id, 'reason', p_reason),
        'The id or the request is taken; use another id, or repeat the request unchanged.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start(json, json, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_conflict(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_start(json, json, text, text) IS 'Starts one run.';
COMMENT ON FUNCTION flow_raise_conflict(text, text) IS 'Raises WF002.';
