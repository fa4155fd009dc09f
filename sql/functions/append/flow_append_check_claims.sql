-- flow_append_check_claims: refuses the elements that link a run which does not exist, or want a
-- hook token which is not theirs to take.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns the verdicts, changed.
-- Elements count in their order, as if they were appended one after the other; within an element
-- its net effect counts. A token is free when no active hook has it, when the hook that has it is
-- settled by this element or an earlier one, or when the same hook of the same run asks again. An
-- active hook cannot change its token.
-- One look at all wanted hooks finds the few, usually none, that another one may stand in the way
-- of; only those are gone through, so that the cost grows with the number of hooks.
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
    v_wanted record;
    -- wanted hooks that have something in common with each other or with an active hook
    v_suspect_ordinals integer[];
    v_suspect_hooks text[];
    v_suspect_tokens text[];
    -- those of them that accepted elements of this batch leave open
    v_runs text[] := '{}';
    v_hooks text[] := '{}';
    v_tokens text[] := '{}';
    v_before integer;
    v_missing text;
    v_owner record;
BEGIN
    SELECT array_agg(s.ordinal ORDER BY s.ordinal, s.event_position),
           array_agg(s.hook_id ORDER BY s.ordinal, s.event_position),
           array_agg(s.token ORDER BY s.ordinal, s.event_position)
      INTO v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens
      FROM (SELECT w.ordinal, w.event_position, w.hook_id, w.token,
                   o.run_id IS NOT NULL AS is_active,
                   count(*) OVER (PARTITION BY w.token) AS of_token,
                   count(*) OVER (PARTITION BY w.ordinal, w.hook_id) AS of_hook
              FROM (SELECT e.ordinal, e.run_id, v.event_position,
                           v.subject_id COLLATE "C" AS hook_id, v.token COLLATE "C" AS token
                      FROM unnest(p_elements) AS e
                     CROSS JOIN LATERAL unnest(flow_append_open_hooks(e)) AS v
                     WHERE e.has_token AND (p_verdicts[e.ordinal]).outcome = 'appended') AS w
              LEFT JOIN LATERAL (
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.token = w.token AND (h.run_id <> w.run_id OR h.hook_id <> w.hook_id)
                       AND NOT (h.run_id = w.run_id AND (h.run_id, h.hook_id) IN (
                            -- settled by the same element: in nobody's way. Not correlated, so that
                            -- it is computed once and hashed
                            SELECT e.run_id COLLATE "C", v.subject_id COLLATE "C"
                              FROM unnest(p_elements) AS e
                             CROSS JOIN LATERAL unnest(e.events) AS v
                             WHERE v.event_type IN ('hook_received', 'hook_disposed')
                               AND v.subject_id IS NOT NULL AND e.run_id IS NOT NULL
                               AND (p_verdicts[e.ordinal]).outcome = 'appended'))
                    UNION ALL
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.run_id = w.run_id AND h.hook_id = w.hook_id AND h.token <> w.token
                     LIMIT 1) AS o ON true) AS s
     WHERE s.is_active OR s.of_token > 1 OR s.of_hook > 1;
    IF v_suspect_ordinals IS NULL
       AND NOT EXISTS (SELECT FROM unnest(p_elements) AS e WHERE e.has_link)
    THEN
        RETURN p_verdicts;
    END IF;

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
        FOR v_wanted IN
            SELECT s.hook_id AS subject_id, s.token
              FROM unnest(v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens)
                   WITH ORDINALITY AS s (ordinal, hook_id, token, place)
             WHERE s.ordinal = v_element.ordinal
             ORDER BY s.place
        LOOP
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
