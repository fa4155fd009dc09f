-- flow_append_check_claims: refuses the elements that link a run which does not exist, or want a
-- hook token which is not theirs to take.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns the verdicts, changed.
-- Elements count in their order, as if they were appended one after the other; within an element
-- its net effect counts. A token is free when no active hook has it, when the hook that has it is
-- settled by this element or an earlier one, or when the same hook of the same run asks again. An
-- active hook cannot change its token.
-- Locks: none; the caller holds run and token locks. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_check_claims(
    p_elements flow_append_element[], p_verdicts flow_append_verdict[]
) RETURNS flow_append_verdict[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_element flow_append_element;
    v_accepted flow_append_element[] := '{}';
    v_wanted flow_append_event;
    -- hooks that accepted elements of this batch leave open
    v_runs text[] := '{}';
    v_hooks text[] := '{}';
    v_tokens text[] := '{}';
    v_before integer;
    v_missing text;
    v_owner record;
BEGIN
    FOREACH v_element IN ARRAY p_elements LOOP
        CONTINUE WHEN (p_verdicts[v_element.ordinal]).outcome <> 'appended';
        IF v_element.has_link THEN
            SELECT v.linked_run_id INTO v_missing
              FROM unnest(v_element.events) AS v
             WHERE v.linked_run_id <> v_element.run_id
               AND NOT EXISTS (SELECT FROM flow_runs AS r
                                WHERE r.run_id = v.linked_run_id AND r.head_sequence > 0)
               AND NOT EXISTS (SELECT FROM unnest(v_accepted) AS a
                                WHERE a.run_id = v.linked_run_id)
             LIMIT 1;
            IF FOUND THEN
                p_verdicts[v_element.ordinal].outcome := 'link_not_found';
                p_verdicts[v_element.ordinal].detail :=
                    json_build_object('flow_run_id', v_missing);
                CONTINUE;
            END IF;
        END IF;

        v_before := cardinality(v_tokens);
        FOREACH v_wanted IN ARRAY flow_append_open_hooks(v_element) LOOP
            SELECT o.run_id, o.hook_id, o.token = v_wanted.token AS is_taken INTO v_owner
              FROM (SELECT h.run_id, h.hook_id, h.token
                      FROM flow_active_hooks AS h
                     WHERE h.token = v_wanted.token
                       AND (h.run_id <> v_element.run_id OR h.hook_id <> v_wanted.subject_id)
                       AND NOT flow_append_settles(v_accepted || v_element, h.run_id, h.hook_id)
                    UNION ALL
                    SELECT h.run_id, h.hook_id, h.token
                      FROM flow_active_hooks AS h
                     WHERE h.run_id = v_element.run_id AND h.hook_id = v_wanted.subject_id
                       AND h.token <> v_wanted.token
                       AND NOT flow_append_settles(ARRAY[v_element], h.run_id, h.hook_id)
                    UNION ALL
                    SELECT b.run_id, b.hook_id, b.token
                      FROM unnest(v_runs, v_hooks, v_tokens) AS b (run_id, hook_id, token)
                     WHERE (b.token = v_wanted.token) <> (b.run_id = v_element.run_id
                                                          AND b.hook_id = v_wanted.subject_id)) AS o
             LIMIT 1;
            IF FOUND THEN
                p_verdicts[v_element.ordinal].outcome :=
                    CASE WHEN v_owner.is_taken THEN 'hook_token_conflict' ELSE 'invalid' END;
                p_verdicts[v_element.ordinal].detail := CASE WHEN v_owner.is_taken
                    THEN json_build_object('run_id', v_owner.run_id, 'hook_id', v_owner.hook_id,
                        'requested_hook_id', v_wanted.subject_id)
                    ELSE json_build_object('sqlstate', 'WF009', 'reason',
                        format('hook %s is active with another token', v_wanted.subject_id)) END;
                -- a refused element takes nothing
                v_runs := v_runs[:v_before];
                v_hooks := v_hooks[:v_before];
                v_tokens := v_tokens[:v_before];
                EXIT;
            END IF;
            v_runs := v_runs || v_element.run_id;
            v_hooks := v_hooks || v_wanted.subject_id;
            v_tokens := v_tokens || v_wanted.token;
        END LOOP;
        IF (p_verdicts[v_element.ordinal]).outcome = 'appended' THEN
            v_accepted := v_accepted || v_element;
        END IF;
    END LOOP;
    RETURN p_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    IS 'Refuses the elements of a batch with a missing link or a hook token of another hook.';
