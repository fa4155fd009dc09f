-- Members of a json object, verbatim, also where the document holds \u0000 or a lone surrogate.
--   flow_json_get(object, key)        the member as json, its text unchanged; null when absent
--   flow_json_get_text(object, key)   the member as text; null when absent or JSON null
-- Arguments: p_object (anything but an object has no members), p_key.
-- Locks: none. SQLSTATEs: 22P05 from flow_json_get_text when the string cannot be text.
-- Callers: internal. Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_json_get(p_object json, p_key text) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN flow_json_is_hard(p_object::text)
    THEN flow_json_unshield((flow_json_shield(p_object::text)::json -> p_key)::text)::json
    ELSE p_object -> p_key
END;

CREATE FUNCTION flow_json_get_text(p_object json, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN flow_json_is_hard(p_object::text)
    THEN flow_text_unshield(true, flow_json_shield(p_object::text)::json ->> p_key)
    ELSE p_object ->> p_key
END;

REVOKE EXECUTE ON FUNCTION flow_json_get(json, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_get_text(json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_get(json, text) IS 'A member of a json object, its text unchanged.';
COMMENT ON FUNCTION flow_json_get_text(json, text) IS 'A member of a json object as text.';
