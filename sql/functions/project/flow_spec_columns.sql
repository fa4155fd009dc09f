-- flow_spec_columns: name, version and build of a workflow, out of the payload of run_created.
-- Arguments: p_run_id (for the error), p_payload, an object with a member spec.
-- Locks: none. SQLSTATEs: WF009 when name or version is missing, blank, too long to index, or not
--   text. Callers: internal.
CREATE FUNCTION flow_spec_columns(
    p_run_id text, p_payload json, OUT name text, OUT version text, OUT build text
)
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_spec json;
    v_reason text;
BEGIN
    v_spec := flow_json_get(p_payload, 'spec');
    v_reason := flow_spec_refusal(v_spec);
    IF v_reason IS NOT NULL THEN
        PERFORM flow_raise_transition(p_run_id, v_reason);
    END IF;
    name := flow_json_get_text(v_spec, 'name');
    version := flow_json_get_text(v_spec, 'version');
    build := flow_json_get_text(v_spec, 'runtime_build');
END
$$;

CREATE FUNCTION flow_spec_refusal(p_spec json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_key text;
    v_member json;
BEGIN
    IF p_spec IS NULL OR json_typeof(p_spec) <> 'object' THEN
        RETURN 'the workflow spec is not a JSON object';
    END IF;
    FOREACH v_key IN ARRAY ARRAY['name', 'version', 'runtime_build'] LOOP
        v_member := flow_json_get(p_spec, v_key);
        CONTINUE WHEN v_key = 'runtime_build'
            AND (v_member IS NULL OR json_typeof(v_member) = 'null');
        IF v_member IS NULL OR json_typeof(v_member) <> 'string'
            OR btrim(flow_json_get_text(p_spec, v_key)) = ''
        THEN
            RETURN format('the workflow spec needs a %s that is a string and not blank', v_key);
        END IF;
        IF octet_length(flow_json_get_text(p_spec, v_key)) > 1024 THEN
            RETURN format('the %s of the workflow spec is longer than 1024 bytes', v_key);
        END IF;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN 'the name, version or build of the workflow spec holds characters that text cannot';
END
$$;

REVOKE EXECUTE ON FUNCTION flow_spec_columns(text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_spec_refusal(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_spec_columns(text, json) IS 'Name, version and build out of a run_created payload.';
COMMENT ON FUNCTION flow_spec_refusal(json) IS 'What is wrong with a workflow spec, or null.';
