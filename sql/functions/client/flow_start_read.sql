-- Requests to start runs, checked one by one.
--   flow_start_request_of(...)       one request; a missing run id is generated (UUID version 7)
--   flow_start_read(batch, flag)     all requests of an array; flag: it went through
--                                    flow_json_shield
-- Arguments: run id, spec, input and queue as flow_start takes them.
-- Locks: none. SQLSTATEs: class 22 from flow_start_read when a member has the wrong JSON type.
-- Callers: internal.
CREATE FUNCTION flow_start_request_of(
    p_ordinal integer, p_run_id text, p_spec json, p_input json, p_queue text
) RETURNS flow_start_request
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_request flow_start_request;
    v_reason text := flow_spec_refusal(p_spec);
BEGIN
    v_request.ordinal := p_ordinal;
    v_request.run_id := coalesce(p_run_id, flow_uuid7()::text);
    v_request.spec := p_spec;
    v_request.input := coalesce(p_input, 'null');
    v_request.queue := coalesce(p_queue, 'default');
    v_request.payload := '{"spec":' || p_spec::text || ',"input":' || v_request.input::text || '}';
    IF NOT flow_run_id_is_valid(v_request.run_id) THEN
        v_request.refusal := json_build_object('sqlstate', 'WF013',
            'reason', 'a run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + -');
    ELSIF v_reason IS NOT NULL THEN
        v_request.refusal := json_build_object('sqlstate', 'WF010', 'argument', 'p_spec',
            'reason', v_reason);
    ELSIF btrim(v_request.queue) = '' OR octet_length(v_request.queue) > 255 THEN
        v_request.refusal := json_build_object('sqlstate', 'WF010', 'argument', 'p_queue',
            'reason', 'a queue name has 1 to 255 bytes and is not blank');
    ELSIF octet_length(v_request.payload) > 1048576 THEN
        v_request.refusal := json_build_object('sqlstate', 'WF012',
            'reason', 'the spec and input are too large', 'event_type', 'run_created',
            'bytes', octet_length(v_request.payload), 'max_bytes', 1048576);
    END IF;
    RETURN v_request;
END
$$;

CREATE FUNCTION flow_start_read(p_runs json, p_shielded boolean) RETURNS flow_start_request[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN ARRAY(
        SELECT flow_start_request_of(r.ordinal::integer,
                   flow_text_unshield(p_shielded, r.run_id),
                   CASE WHEN p_shielded THEN flow_json_unshield(r.spec::text)::json ELSE r.spec END,
                   CASE WHEN p_shielded THEN flow_json_unshield(i.input::text)::json
                        ELSE i.input END,
                   flow_text_unshield(p_shielded, r.queue))
          FROM ROWS FROM (
                   json_to_recordset(p_runs) AS (run_id text, spec json, input json, queue text),
                   json_array_elements(p_runs))
               WITH ORDINALITY AS r (run_id, spec, input, queue, element, ordinal)
         -- a record re-encodes strings; the element has the text as it came
         CROSS JOIN LATERAL (SELECT CASE json_typeof(r.input) WHEN 'string'
                                         THEN r.element -> 'input' ELSE r.input END AS input) AS i
         ORDER BY r.ordinal);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_request_of(integer, text, json, json, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_start_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_request_of(integer, text, json, json, text)
    IS 'One checked request to start a run.';
COMMENT ON FUNCTION flow_start_read(json, boolean) IS 'Takes a batch of starts apart.';
