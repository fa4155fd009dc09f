-- flow_settle_hook: resumes or disposes a hook; what the four hook verbs share.
-- Arguments: p_run_id, p_hook_id; p_payload, what the hook receives, or null to dispose it;
--   p_token, the token the hook must still have, or null when it is addressed by run and id;
--   p_checked, the text of the schema that the payload was checked against, empty for none: an
--   active hook that has another schema is left as it is. Null not to ask.
-- Returns run_id, subject_id (the hook), applied, the head, and payload_schema: null, or the schema
--   to check against first, and then nothing was done.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF004, WF006, WF007, WF009, WF010, WF012, WF013. Callers: internal.
CREATE FUNCTION flow_settle_hook(
    p_run_id text, p_hook_id text, p_payload json, p_token text, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_last record;
    v_schema json;
    v_reason text := flow_json_refusal(p_payload);
BEGIN
    IF p_hook_id IS NULL THEN
        PERFORM flow_raise_argument('p_hook_id', 'it is null');
    ELSIF v_reason IS NOT NULL THEN
        PERFORM flow_raise_argument('p_payload', v_reason);
    END IF;
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    SELECT h.payload_schema INTO v_schema
      FROM flow_active_hooks AS h
     WHERE h.run_id = p_run_id AND h.hook_id = p_hook_id
       AND (p_token IS NULL OR h.token = p_token);
    IF FOUND THEN
        IF v_schema::text <> p_checked THEN
            RETURN QUERY SELECT p_run_id, p_hook_id, false, v_head, v_schema;
            RETURN;
        END IF;
        v_head := flow_write_event(p_run_id, v_head,
            CASE WHEN p_payload IS NULL THEN 'hook_disposed' ELSE 'hook_received' END, p_hook_id,
            '{"hook_id":' || to_json(p_hook_id)
                || coalesce(',"payload":' || p_payload::text, '') || '}');
        RETURN QUERY SELECT p_run_id, p_hook_id, true, v_head, NULL::json;
        RETURN;
    END IF;
    IF p_token IS NOT NULL THEN
        -- it was found by its token and settled before the run could be locked
        PERFORM flow_raise_token_not_found();
    END IF;

    SELECT e.event_type, e.payload INTO v_last
      FROM flow_event_log AS e
     WHERE e.run_id = p_run_id AND e.subject_id = p_hook_id
       AND e.event_type IN ('hook_created', 'hook_received', 'hook_disposed', 'hook_conflicted')
     ORDER BY e.sequence DESC
     LIMIT 1;
    IF v_last.event_type = 'hook_received' AND p_payload IS NOT NULL
        AND flow_json_equal(flow_json_get(v_last.payload, 'payload'), p_payload)
        OR v_last.event_type = 'hook_disposed' AND p_payload IS NULL
    THEN
        PERFORM flow_redelivered(p_run_id, v_status);
        RETURN QUERY SELECT p_run_id, p_hook_id, false, v_head, NULL::json;
        RETURN;
    END IF;
    v_reason := CASE
        WHEN v_last.event_type = 'hook_received' AND p_payload IS NOT NULL
            THEN 'it was answered with another payload'
        WHEN v_last.event_type = 'hook_received' THEN 'it was answered'
        WHEN v_last.event_type = 'hook_disposed' THEN 'it was disposed'
        WHEN v_last.event_type = 'hook_conflicted' THEN 'its token belonged to another hook'
        WHEN v_last.event_type = 'hook_created' AND NOT flow_is_terminal(v_status)
            THEN 'it was cancelled'
    END;
    IF v_reason IS NOT NULL THEN
        PERFORM flow_raise('WF007', format('hook %s of run %s: %s', p_hook_id, p_run_id, v_reason),
            jsonb_build_object('run_id', p_run_id, 'hook_id', p_hook_id, 'reason', v_reason),
            'The hook was settled in another way before; its outcome stands.');
    ELSIF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_run_id, v_status);
    END IF;
    PERFORM flow_raise_transition(p_run_id, format('hook %s does not exist', p_hook_id));
END
$$;

-- The run and hook that have a token, among the active ones.
CREATE FUNCTION flow_owner_of(p_token text, OUT run_id text, OUT hook_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT h.run_id, h.hook_id INTO run_id, hook_id
      FROM flow_active_hooks AS h WHERE h.token = p_token;
    IF NOT FOUND THEN
        PERFORM flow_raise_token_not_found();
    END IF;
END
$$;

CREATE FUNCTION flow_raise_token_not_found() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF006', 'no active hook has this token', '{}',
        'It was never created, is settled, or its run has ended; use run id and hook id instead.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_hook(text, text, json, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_owner_of(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_token_not_found() FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_hook(text, text, json, text, text) IS 'Resumes or disposes a hook.';
COMMENT ON FUNCTION flow_owner_of(text) IS 'The run and hook that have a token.';
COMMENT ON FUNCTION flow_raise_token_not_found() IS 'Raises WF006.';
