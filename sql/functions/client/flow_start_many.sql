-- flow_start_many: starts many runs in one call, each on its own merits.
-- Arguments: p_runs, a JSON array of at most 1000 of
--   {"run_id"?: text, "spec": {"name", "version", ...}, "input"?: any, "queue"?: text}
-- Returns one row an element, in order: run_id (generated when none was given), outcome created,
--   exists (the same run, not applied again), run_conflict or invalid, the head, and detail.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows.
-- SQLSTATEs: WF010 when p_runs is not such an array. Callers: client, worker.
CREATE FUNCTION flow_start_many(p_runs json)
RETURNS TABLE (ordinal integer, run_id text, outcome text, head_sequence bigint, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_shielded boolean := flow_json_is_hard(p_runs::text);
    v_runs json := p_runs;
    v_requests flow_start_request[];
    v_one flow_start_request[];
    v_element json;
    v_ordinal integer := 0;
BEGIN
    IF p_runs IS NULL OR json_typeof(p_runs) <> 'array' THEN
        PERFORM flow_raise_argument('p_runs', 'it must be a JSON array of runs to start');
    END IF;
    IF json_array_length(p_runs) > 1000 THEN
        PERFORM flow_raise_argument('p_runs', 'at most 1000 runs a call');
    END IF;
    IF v_shielded THEN
        v_runs := flow_json_shield(p_runs::text)::json;
    END IF;
    BEGIN
        v_requests := flow_start_read(v_runs, v_shielded);
    EXCEPTION WHEN data_exception THEN
        -- some element is malformed: find out which
        v_requests := '{}';
        FOR v_element IN SELECT a.element FROM json_array_elements(v_runs) AS a (element) LOOP
            v_ordinal := v_ordinal + 1;
            BEGIN
                v_one := flow_start_read(('[' || v_element::text || ']')::json, v_shielded);
                v_one[1].ordinal := v_ordinal;
            EXCEPTION WHEN data_exception THEN
                v_one := ARRAY[ROW(v_ordinal, flow_append_run_id(v_element, v_shielded), NULL, NULL,
                    'default', NULL, json_build_object('sqlstate', 'WF010', 'argument', 'p_runs',
                    'reason', 'the element is malformed: a member has the wrong type or form')
                    )::flow_start_request];
            END;
            v_requests := v_requests || v_one;
        END LOOP;
    END;
    RETURN QUERY
    SELECT s.ordinal, s.run_id, s.outcome, s.head_sequence, s.detail
      FROM flow_start_runs(v_requests) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_many(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_many(json) IS 'Starts many runs in one call.';
