-- What tasks are checked for, and by what two of them are the same.
--   flow_dedupe_key(kind, run, payload)   kind and SHA-256 of the ids it addresses, each with its
--                                         length; a token is only in there as part of the hash
--   flow_check_task(...)                  refuses what makes no sense
--   flow_is_token_kind(kind)              whether the payload of the kind holds a token
-- Arguments: as in flow_enqueue_task. Locks: none. SQLSTATEs: WF010, WF013. Callers: internal.
CREATE FUNCTION flow_dedupe_key(p_kind text, p_run_id text, p_payload json) RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT p_kind || ':' || encode(sha256(convert_to(
               string_agg(octet_length(i.part) || ':' || i.part, ',' ORDER BY i.n), 'UTF8')), 'hex')
      FROM (VALUES (1, p_kind), (2, coalesce(p_run_id, '')),
                   (3, coalesce(flow_json_get(p_payload, 'wait_id')::text, '')),
                   (4, coalesce(flow_json_get(p_payload, 'hook_id')::text, '')),
                   (5, coalesce(flow_json_get(p_payload, 'token')::text, ''))) AS i (n, part)
$$;

CREATE FUNCTION flow_is_token_kind(p_kind text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token');

CREATE FUNCTION flow_check_task(
    p_kind text, p_payload json, p_queue text, p_run_id text, p_dedupe_mode text,
    p_dedupe_ttl interval, p_max_attempts integer, p_retry_delay interval, p_timeout interval,
    p_max_stalled integer
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_member text := CASE
        WHEN p_kind = 'resume_wait' THEN 'wait_id'
        WHEN p_kind IN ('resume_hook', 'dispose_hook') THEN 'hook_id'
        WHEN p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token') THEN 'token' END;
BEGIN
    IF p_kind IS NULL OR p_kind NOT IN (
        'drive_run', 'resume_wait', 'resume_hook', 'resume_hook_by_token', 'dispose_hook',
        'dispose_hook_by_token', 'resume_scheduled_run', 'resume_due_waits', 'resume_due_retries')
    THEN
        PERFORM flow_raise_argument('p_kind', 'there is no such kind of task');
    ELSIF p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token', 'resume_due_waits',
        'resume_due_retries')
    THEN
        IF p_run_id IS NOT NULL THEN
            PERFORM flow_raise_argument('p_run_id', 'tasks of this kind name no run');
        END IF;
    ELSIF NOT coalesce(flow_run_id_is_valid(p_run_id), false) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    IF v_member IS NOT NULL AND (p_payload IS NULL OR json_typeof(p_payload) <> 'object'
        OR coalesce(json_typeof(flow_json_get(p_payload, v_member)), '') <> 'string')
    THEN
        PERFORM flow_raise_argument('p_payload',
            'it must be an object with the string ' || v_member);
    ELSIF octet_length(p_payload::text) > 1048576 THEN
        PERFORM flow_raise_argument('p_payload', 'it is over 1048576 bytes');
    ELSIF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'it must be 1 to 255 bytes, not blank');
    ELSIF p_dedupe_mode IS NULL OR p_dedupe_mode NOT IN (
        'off', 'until_terminal', 'until_terminal_or_ttl', 'keep_latest')
    THEN
        PERFORM flow_raise_argument('p_dedupe_mode', 'there is no such mode');
    ELSIF (p_dedupe_mode = 'until_terminal_or_ttl') <> (p_dedupe_ttl IS NOT NULL)
        OR p_dedupe_ttl <= '0' OR p_dedupe_ttl > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_dedupe_ttl',
            'it belongs to until_terminal_or_ttl, must be longer than nothing, and at most '
            '1000 years');
    ELSIF p_max_attempts < 1 OR p_max_stalled < 0 THEN
        PERFORM flow_raise_argument('p_max_attempts', 'attempts begin at one, crashes at none');
    ELSIF p_retry_delay < '0' OR p_timeout <= '0'
        OR greatest(p_retry_delay, p_timeout) > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_retry_delay',
            'a delay or timeout cannot be negative, or longer than 1000 years');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dedupe_key(text, text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_is_token_kind(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_task(text, json, text, text, text, interval, integer,
    interval, interval, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_dedupe_key(text, text, json) IS 'By what two tasks are the same.';
COMMENT ON FUNCTION flow_is_token_kind(text) IS 'Whether the payload of the kind holds a token.';
COMMENT ON FUNCTION flow_check_task(text, json, text, text, text, interval, integer, interval,
    interval, integer) IS 'Refuses a task that makes no sense.';
