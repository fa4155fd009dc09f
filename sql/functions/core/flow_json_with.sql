-- flow_json_with: an object with one more text member at its end, the rest of its text unchanged.
-- Arguments: p_object (a JSON object), p_key and p_value (plain words that need no escaping).
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_json_with(p_object json, p_key text, p_value text) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(p_object::text, '[ \t\n\r]*\}[ \t\n\r]*$',
    CASE WHEN p_object::text ~ '^[ \t\n\r]*\{[ \t\n\r]*\}[ \t\n\r]*$' THEN '' ELSE ',' END
    || '"' || p_key || '":"' || p_value || '"}')::json;

REVOKE EXECUTE ON FUNCTION flow_json_with(json, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_with(json, text, text)
    IS 'An object with one more text member at its end.';
