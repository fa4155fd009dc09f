-- flow_append_check_claims: refuses the elements that link a run which does not exist, or want a
-- hook token which is not theirs to take.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns the verdicts, changed.
-- Elements count in their order, as if they were appended one after the other; within an element
-- its net effect counts. A token is free when no active hook has it, when the hook that has it is
-- settled by this element or an earlier one, or when the same hook of the same run asks again. An
-- active hook cannot change its token. All hooks that are refused their token are named at once,
-- the first in detail itself and those after it under "others": a refused hook takes nothing.
-- Only hooks that another one may stand in the way of (flow_append_suspects) are gone through.
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
    -- what accepted elements and the one at hand settle; without a hook id all hooks of the run
    v_done_runs text[] := '{}';
    v_done_hooks text[] := '{}';
    v_done_before integer;
    v_refused json[];
    v_missing text;
    v_owner record;
BEGIN
    SELECT array_agg(s.ordinal), array_agg(s.hook_id), array_agg(s.token)
      INTO v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens
      FROM flow_append_suspects(p_elements, p_verdicts) AS s;
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
        v_done_before := cardinality(v_done_runs);
        v_refused := '{}';
        SELECT v_done_runs || coalesce(array_agg(v_element.run_id), '{}'),
               v_done_hooks || coalesce(array_agg(
                   CASE WHEN NOT flow_clears(v.event_type) THEN v.subject_id END), '{}')
          INTO v_done_runs, v_done_hooks
          FROM unnest(v_element.events) AS v
         WHERE flow_clears(v.event_type)
            OR v.event_type IN ('hook_received', 'hook_disposed') AND v.subject_id IS NOT NULL;
        FOR v_wanted IN
            SELECT s.hook_id AS subject_id, s.token
              FROM unnest(v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens)
                   WITH ORDINALITY AS s (ordinal, hook_id, token, place)
             WHERE s.ordinal = v_element.ordinal
             ORDER BY s.place
        LOOP
            SELECT o.run_id, o.hook_id, o.token = v_wanted.token AS is_taken INTO v_owner
              FROM (SELECT h.run_id, h.hook_id, h.token
                      FROM (SELECT a.run_id, a.hook_id, a.token
                              FROM flow_active_hooks AS a
                             WHERE a.token = v_wanted.token
                               AND (a.run_id <> v_element.run_id
                                    OR a.hook_id <> v_wanted.subject_id)
                            UNION ALL
                            SELECT a.run_id, a.hook_id, a.token
                              FROM flow_active_hooks AS a
                             WHERE a.run_id = v_element.run_id AND a.hook_id = v_wanted.subject_id
                               AND a.token <> v_wanted.token) AS h
                     WHERE NOT EXISTS (
                            SELECT FROM unnest(v_done_runs, v_done_hooks) AS d (run_id, hook_id)
                             WHERE d.run_id = h.run_id
                               AND (d.hook_id IS NULL OR d.hook_id = h.hook_id))
                    UNION ALL
                    SELECT b.run_id, b.hook_id, b.token
                      FROM unnest(v_runs, v_hooks, v_tokens) AS b (run_id, hook_id, token)
                     WHERE (b.token = v_wanted.token) <> (b.run_id = v_element.run_id
                                                          AND b.hook_id = v_wanted.subject_id)) AS o
             LIMIT 1;
            IF NOT FOUND THEN
                v_runs := v_runs || v_element.run_id;
                v_hooks := v_hooks || v_wanted.subject_id;
                v_tokens := v_tokens || v_wanted.token;
            ELSIF v_owner.is_taken THEN
                v_refused := v_refused || json_build_object('run_id', v_owner.run_id,
                    'hook_id', v_owner.hook_id, 'requested_hook_id', v_wanted.subject_id);
            ELSE
                p_verdicts[v_element.ordinal].outcome := 'invalid';
                p_verdicts[v_element.ordinal].detail := json_build_object('sqlstate', 'WF009',
                    'reason', format('hook %s is active with another token', v_wanted.subject_id));
                EXIT;
            END IF;
        END LOOP;
        IF cardinality(v_refused) > 0 THEN
            p_verdicts[v_element.ordinal].outcome := 'hook_token_conflict';
            p_verdicts[v_element.ordinal].detail := CASE cardinality(v_refused)
                WHEN 1 THEN v_refused[1]
                ELSE json_build_object('run_id', v_refused[1] -> 'run_id',
                    'hook_id', v_refused[1] -> 'hook_id',
                    'requested_hook_id', v_refused[1] -> 'requested_hook_id',
                    'others', array_to_json(v_refused[2:])) END;
        END IF;
        IF (p_verdicts[v_element.ordinal]).outcome = 'appended' THEN
            v_accepted := v_accepted || v_element;
        ELSE
            -- a refused element takes nothing, and settles nothing
            v_runs := v_runs[:v_before];
            v_hooks := v_hooks[:v_before];
            v_tokens := v_tokens[:v_before];
            v_done_runs := v_done_runs[:v_done_before];
            v_done_hooks := v_done_hooks[:v_done_before];
        END IF;
    END LOOP;
    RETURN p_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    IS 'Refuses the elements of a batch with a missing link or a hook token of another hook.';
