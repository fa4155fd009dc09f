-- flow_start_read: takes a batch of runs to start apart, and checks each.
-- Arguments: p_runs, the array that flow_start_many takes; p_shielded, whether its text went
--   through
--   flow_json_shield. A missing run id is generated (UUID version 7).
-- Locks: none. SQLSTATEs: class 22 when a member has the wrong JSON type: the caller then reads the
--   elements one by one to find the one at fault. Callers: internal.
CREATE FUNCTION flow_start_read(p_runs json, p_shielded boolean) RETURNS flow_start_request[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_requests flow_start_request[];
    -- the runs of a batch are often of one workflow: its spec is looked into once
    v_first_spec text := CASE WHEN NOT p_shielded THEN (p_runs -> 0 -> 'spec')::text END;
    v_first_reason text := flow_spec_refusal(v_first_spec::json);
BEGIN
    SELECT array_agg(ROW(q.ordinal, q.run_id, q.spec, q.input, q.queue, p.payload,
               CASE
                   WHEN NOT flow_run_id_is_valid(q.run_id) THEN json_build_object(
                       'sqlstate', 'WF013',
                       'reason', 'a run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + -')
                   WHEN p.reason IS NOT NULL THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_spec', 'reason', p.reason)
                   WHEN p.input_reason IS NOT NULL THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_input', 'reason', p.input_reason)
                   WHEN btrim(q.queue) = '' OR octet_length(q.queue) > 255 THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_queue',
                       'reason', 'a queue name has 1 to 255 bytes and is not blank')
                   WHEN octet_length(p.payload) > 1048576 THEN json_build_object(
                       'sqlstate', 'WF012', 'reason', 'the spec and input are too large',
                       'event_type', 'run_created', 'bytes', octet_length(p.payload),
                       'max_bytes', 1048576)
               END)::flow_start_request ORDER BY q.ordinal)
      INTO v_requests
      FROM (
        SELECT r.ordinal,
               coalesce(flow_text_unshield(p_shielded, r.run_id), flow_uuid7()::text) AS run_id,
               CASE WHEN p_shielded THEN flow_json_unshield(r.spec::text)::json ELSE r.spec
               END AS spec,
               coalesce(CASE WHEN p_shielded THEN flow_json_unshield(i.input::text)::json
                             ELSE i.input END, 'null') AS input,
               coalesce(flow_text_unshield(p_shielded, r.queue), 'default') AS queue
          FROM ROWS FROM (
                   json_to_recordset(p_runs) AS (run_id text, spec json, input json, queue text),
                   json_array_elements(p_runs))
               WITH ORDINALITY AS r (run_id, spec, input, queue, element, ordinal)
         -- a record re-encodes strings; the element has the text as it came
         CROSS JOIN LATERAL (
                SELECT CASE json_typeof(r.input) WHEN 'string' THEN r.element -> 'input'
                            ELSE r.input END AS input OFFSET 0) AS i
        OFFSET 0
      ) AS q
     CROSS JOIN LATERAL (
        SELECT '{"spec":' || q.spec || ',"input":' || q.input || '}' AS payload,
               CASE WHEN q.spec::text = v_first_spec THEN v_first_reason
                    ELSE flow_spec_refusal(q.spec) END AS reason,
               flow_json_refusal(q.input) AS input_reason OFFSET 0) AS p;
    RETURN coalesce(v_requests, '{}');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_read(json, boolean) IS 'Takes a batch of runs to start apart.';
