-- flow_append_check_tokens: refuses the elements that want a hook token which is not theirs to take.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns the verdicts, changed.
-- A token is free when no active hook has it, when the hook that has it is settled earlier in the
-- same element, or when the same hook of the same run asks again. Of two elements that want one
-- token the first gets it. An active hook cannot change its token.
-- Locks: none; the caller holds run and token locks. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_check_tokens(
    p_elements flow_append_element[], p_verdicts flow_append_verdict[]
) RETURNS flow_append_verdict[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    v_element flow_append_element;
    v_event flow_append_event;
    -- the hooks this batch creates, as far as it has been looked through
    v_runs text[] := '{}';
    v_hooks text[] := '{}';
    v_tokens text[] := '{}';
    v_before integer;
    v_owner record;
    v_at integer;
BEGIN
    FOREACH v_element IN ARRAY p_elements LOOP
        CONTINUE WHEN NOT v_element.has_token
            OR (p_verdicts[v_element.ordinal]).outcome <> 'appended';
        v_before := cardinality(v_tokens);
        FOREACH v_event IN ARRAY v_element.events LOOP
            IF v_event.event_type IN ('hook_received', 'hook_disposed')
                OR flow_clears(v_event.event_type)
            THEN
                FOR v_at IN v_before + 1 .. cardinality(v_tokens) LOOP
                    IF v_hooks[v_at] = v_event.subject_id OR flow_clears(v_event.event_type) THEN
                        v_hooks[v_at] := NULL;
                        v_tokens[v_at] := NULL;
                    END IF;
                END LOOP;
            END IF;
            CONTINUE WHEN v_event.token IS NULL;

            -- stored hooks that this element has not settled by now
            SELECT h.run_id, h.hook_id, h.token INTO v_owner
              FROM (SELECT a.run_id, a.hook_id, a.token
                      FROM flow_active_hooks AS a
                     WHERE a.token = v_event.token
                       AND (a.run_id <> v_element.run_id OR a.hook_id <> v_event.subject_id)
                    UNION ALL
                    SELECT a.run_id, a.hook_id, a.token
                      FROM flow_active_hooks AS a
                     WHERE a.run_id = v_element.run_id AND a.hook_id = v_event.subject_id
                       AND a.token <> v_event.token) AS h
             WHERE h.run_id <> v_element.run_id OR NOT EXISTS (
                    SELECT FROM unnest(v_element.events) AS v
                     WHERE v.event_position < v_event.event_position
                       AND (flow_clears(v.event_type)
                            OR (v.subject_id = h.hook_id
                                AND v.event_type IN ('hook_received', 'hook_disposed'))))
             LIMIT 1;
            IF NOT FOUND THEN
                -- hooks of this batch
                FOR v_at IN 1 .. cardinality(v_tokens) LOOP
                    IF (v_tokens[v_at] = v_event.token)
                        <> (v_runs[v_at] = v_element.run_id AND v_hooks[v_at] = v_event.subject_id)
                    THEN
                        SELECT v_runs[v_at], v_hooks[v_at], v_tokens[v_at]
                          INTO v_owner.run_id, v_owner.hook_id, v_owner.token;
                    END IF;
                END LOOP;
            END IF;
            IF v_owner.run_id IS NULL THEN
                v_runs := v_runs || v_element.run_id;
                v_hooks := v_hooks || v_event.subject_id;
                v_tokens := v_tokens || v_event.token;
                CONTINUE;
            END IF;

            IF v_owner.token = v_event.token THEN
                p_verdicts[v_element.ordinal].outcome := 'hook_token_conflict';
                p_verdicts[v_element.ordinal].detail := json_build_object(
                    'run_id', v_owner.run_id, 'hook_id', v_owner.hook_id,
                    'requested_hook_id', v_event.subject_id);
            ELSE
                p_verdicts[v_element.ordinal].outcome := 'invalid';
                p_verdicts[v_element.ordinal].detail := json_build_object('sqlstate', 'WF009',
                    'reason', format('hook %s is active with another token', v_event.subject_id));
            END IF;
            -- a refused element takes nothing
            v_runs := v_runs[:v_before];
            v_hooks := v_hooks[:v_before];
            v_tokens := v_tokens[:v_before];
            EXIT;
        END LOOP;
    END LOOP;
    RETURN p_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check_tokens(flow_append_element[], flow_append_verdict[])
    FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check_tokens(flow_append_element[], flow_append_verdict[])
    IS 'Refuses the elements of a batch that want a hook token of another hook.';
