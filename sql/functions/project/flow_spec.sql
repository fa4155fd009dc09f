-- What a workflow spec must have, and what the run's row takes from it.
--   flow_spec_refusal(spec)              what is wrong with a spec, or null
--   flow_refuse_spec(run, payload)       raises that for a run_created event
-- Arguments: JSON values; p_run_id for the error.
-- Locks: none. SQLSTATEs: WF009, WF013 from flow_refuse_spec. Callers: internal.
-- What drivers cannot read is refused here: a run that was created with it could never be driven.
CREATE FUNCTION flow_spec_refusal(p_spec json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_name json;
    v_version json;
    v_build json;
    v_runtime json;
    v_entrypoint json;
    v_export json;
BEGIN
    IF p_spec IS NULL OR json_typeof(p_spec) <> 'object' THEN
        RETURN 'the workflow spec is not a JSON object';
    END IF;
    v_name := flow_json_get(p_spec, 'name');
    v_version := flow_json_get(p_spec, 'version');
    v_build := flow_json_get(p_spec, 'runtime_build');
    v_runtime := flow_json_get(p_spec, 'runtime');
    IF NOT flow_json_is_name(v_name, 255) THEN
        RETURN 'the workflow spec needs a name: a string, not blank, of at most 255 characters';
    ELSIF NOT flow_json_is_name(v_version, 255) THEN
        RETURN 'the workflow spec needs a version: a string, not blank, of at most 255 characters';
    ELSIF json_typeof(v_build) <> 'null' AND NOT flow_json_is_name(v_build, 128) THEN
        RETURN 'the runtime_build of the workflow spec is not a string, blank, or over 128 '
               'characters';
    ELSIF v_runtime IS NOT NULL THEN
        v_entrypoint := flow_json_get(v_runtime, 'entrypoint');
        v_export := flow_json_get(v_runtime, 'export_name');
        IF json_typeof(v_runtime) <> 'object' OR NOT flow_json_is_name(v_entrypoint, 512)
            OR (v_export IS NOT NULL AND NOT flow_json_is_name(v_export, 512))
            OR flow_json_get(v_runtime, 'type')::text
               NOT IN ('"python"', '"rust_embedded"', '"native_ts"')
        THEN
            RETURN 'the runtime of the workflow spec, if there is one, needs an entrypoint and a '
                   'type: python, rust_embedded or native_ts';
        END IF;
    END IF;
    RETURN 'the workflow spec cannot be read: ' || flow_json_refusal(p_spec);
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

REVOKE EXECUTE ON FUNCTION flow_spec_refusal(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_refuse_spec(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_spec_refusal(json) IS 'What is wrong with a workflow spec, or null.';
COMMENT ON FUNCTION flow_refuse_spec(text, json)
    IS 'Raises what is wrong with a run_created event.';
