-- flow_event_refusal: what is wrong with the shape of one event, or null when it may be stored.
-- flow_event_name: the type of an event as an error may say it; other texts may be anything.
-- Arguments: p_event_type, p_subject_id (1 to 2048 bytes, needed unless the type begins with run_),
--   p_has_due (whether the event has a deadline), p_payload (a JSON object of at most 1048576
--   bytes).
-- 2048 bytes are what an index row can hold together with the run id.
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_name(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_event_type ~ '^[a-z]+(_[a-z]+)+$' THEN p_event_type ELSE 'misnamed' END;

CREATE FUNCTION flow_event_refusal(
    p_event_type text, p_subject_id text, p_has_due boolean, p_payload json
) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN coalesce(p_event_type, '') = '' THEN 'an event has no type'
    WHEN octet_length(p_event_type) > 200 THEN 'an event type is longer than 200 bytes'
    WHEN p_subject_id IS NULL AND NOT starts_with(p_event_type, 'run_')
        THEN 'a ' || flow_event_name(p_event_type) || ' event has no subject'
    WHEN octet_length(p_subject_id) > 2048
        THEN 'the subject of a ' || flow_event_name(p_event_type)
            || ' event is longer than 2048 bytes'
    WHEN btrim(p_subject_id) = ''
        THEN 'the subject of a ' || flow_event_name(p_event_type) || ' event is blank'
    WHEN p_event_type = 'wait_created' AND NOT p_has_due THEN 'a wait_created event has no deadline'
    WHEN p_payload IS NULL OR json_typeof(p_payload) <> 'object'
        THEN 'the payload of a ' || flow_event_name(p_event_type) || ' event is not a JSON object'
    WHEN octet_length(p_payload::text) > 1048576
        THEN 'the payload of a ' || flow_event_name(p_event_type)
            || ' event is larger than 1048576 bytes'
END;

REVOKE EXECUTE ON FUNCTION flow_event_name(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_event_refusal(text, text, boolean, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_refusal(text, text, boolean, json)
    IS 'What is wrong with the shape of one event, or null.';
COMMENT ON FUNCTION flow_event_name(text) IS 'The type of an event as an error may say it.';
