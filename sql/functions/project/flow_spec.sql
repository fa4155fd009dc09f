-- What a workflow spec must have, and what the run's row takes from it.
--   flow_json_is_name(value)             a string that is not blank, not over 1024 bytes, and plain
--                                        text (no \u0000, no lone surrogate)
--   flow_spec_refusal(spec)              what is wrong with a spec, or null
--   flow_refuse_spec(run, payload)       raises that for a run_created event
-- Arguments: JSON values; p_run_id for the error.
-- Locks: none. SQLSTATEs: WF009, WF013 from flow_refuse_spec. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed there. Give them plain
-- columns: an expression as argument keeps them from being inlined.
CREATE FUNCTION flow_json_is_name(p_value json) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN p_value IS NULL OR json_typeof(p_value) <> 'string' THEN false
    WHEN octet_length(p_value::text) NOT BETWEEN 3 AND 6146 THEN false
    WHEN flow_json_is_hard(p_value::text) AND strpos(flow_json_shield(p_value::text), E'\x7f3') > 0
        THEN false
    ELSE btrim(p_value #>> '{}', E' \t\n\r') <> '' AND octet_length(p_value #>> '{}') <= 1024
END;

CREATE FUNCTION flow_spec_refusal(p_spec json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_name json;
    v_version json;
    v_build json;
BEGIN
    IF p_spec IS NULL OR json_typeof(p_spec) <> 'object' THEN
        RETURN 'the workflow spec is not a JSON object';
    END IF;
    v_name := flow_json_get(p_spec, 'name');
    v_version := flow_json_get(p_spec, 'version');
    v_build := flow_json_get(p_spec, 'runtime_build');
    IF NOT flow_json_is_name(v_name) THEN
        RETURN 'the workflow spec needs a name: a string, not blank, of at most 1024 bytes';
    ELSIF NOT flow_json_is_name(v_version) THEN
        RETURN 'the workflow spec needs a version: a string, not blank, of at most 1024 bytes';
    ELSIF json_typeof(v_build) <> 'null' AND NOT flow_json_is_name(v_build) THEN
        RETURN 'the runtime_build of the workflow spec is not a string, blank, or over 1024 bytes';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_refuse_spec(p_run_id text, p_payload json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    PERFORM flow_raise_transition(p_run_id, coalesce(
        flow_spec_refusal(flow_json_get(p_payload, 'spec')), 'the workflow spec is not valid'));
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_json_is_name(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_spec_refusal(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_refuse_spec(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_is_name(json) IS 'Whether a JSON value may name something.';
COMMENT ON FUNCTION flow_spec_refusal(json) IS 'What is wrong with a workflow spec, or null.';
COMMENT ON FUNCTION flow_refuse_spec(text, json)
    IS 'Raises what is wrong with a run_created event.';
