-- flow_project_hooks: brings flow_active_hooks up to date with newly stored events.
-- Arguments: p_events, all of them; p_flags, the union of their flow_event_flags.
--   Only the last event about a hook counts: a hook that is created and settled in the same append
--   leaves no row, and one created after a cancellation request stays. A hook that was refused its
--   token has no row: the history alone knows of it.
-- Locks, in order: token locks, sorted; then rows. The run locks are the caller's.
-- SQLSTATEs: WF005 the token belongs to another active hook; WF009 the hook is active with another
--   token, or is said to be refused its token although it was created. Callers: internal.
CREATE FUNCTION flow_project_hooks(p_events flow_event_fact[], p_flags integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_runs text[];
    v_hooks text[];
    v_tokens text[];
    v_events flow_event_fact[];
    v_clash record;
BEGIN
    IF p_flags & 512 <> 0 THEN
        SELECT e.run_id, e.subject_id AS hook_id INTO v_clash
          FROM unnest(p_events) AS e
         WHERE e.event_type = 'hook_conflicted'
           AND EXISTS (
                SELECT FROM flow_event_log AS l
                 WHERE l.run_id = e.run_id AND l.subject_id = e.subject_id
                   AND l.event_type IN ('hook_created', 'hook_conflicted')
                   AND l.sequence < e.sequence)
         LIMIT 1;
        IF FOUND THEN
            PERFORM flow_raise_transition(v_clash.run_id,
                format('hook %s exists already', v_clash.hook_id));
        END IF;
    END IF;
    IF p_flags & 48 <> 0 THEN
        DELETE FROM flow_active_hooks AS h
              USING unnest(p_events) AS e
              WHERE h.run_id = e.run_id AND flow_clears(e.event_type);
    END IF;
    IF p_flags & 8 <> 0 THEN
        DELETE FROM flow_active_hooks AS h
              USING unnest(p_events) AS e
              WHERE h.run_id = e.run_id AND h.hook_id = e.subject_id
                AND e.event_type IN ('hook_received', 'hook_disposed');
    END IF;
    IF p_flags & 4 = 0 THEN
        RETURN;
    END IF;

    SELECT array_agg(c.run_id), array_agg(c.subject_id),
           array_agg(flow_json_get_text(c.payload, 'token')), array_agg(c.fact)
      INTO v_runs, v_hooks, v_tokens, v_events
      FROM (SELECT e.run_id, e.subject_id, e.payload, e.sequence, e.event_type, e AS fact,
                   max(e.sequence) FILTER (WHERE flow_clears(e.event_type))
                       OVER (PARTITION BY e.run_id COLLATE "C") AS cleared_at,
                   max(e.sequence) FILTER (
                       WHERE e.event_type IN ('hook_received', 'hook_disposed'))
                       OVER (PARTITION BY e.run_id COLLATE "C", e.subject_id COLLATE "C")
                       AS settled_at
              FROM unnest(p_events) AS e
             WHERE e.event_type IN ('hook_created', 'hook_received', 'hook_disposed')
                OR flow_clears(e.event_type)
             -- of events that create the same hook the first is the one that is kept
             ORDER BY e.sequence) AS c
     WHERE c.event_type = 'hook_created'
       AND c.sequence > coalesce(greatest(c.cleared_at, c.settled_at), 0);
    IF v_runs IS NULL THEN
        RETURN;
    END IF;

    PERFORM flow_lock_tokens(v_tokens);
    SELECT w.run_id, w.hook_id, h.run_id AS owner_run_id, h.hook_id AS owner_hook_id INTO v_clash
      FROM unnest(v_runs, v_hooks, v_tokens) AS w (run_id, hook_id, token)
      JOIN flow_active_hooks AS h ON h.token = w.token
     WHERE (h.run_id, h.hook_id) <> (w.run_id, w.hook_id)
     LIMIT 1;
    IF FOUND THEN
        PERFORM flow_raise_token_conflict(
            v_clash.run_id, v_clash.hook_id, v_clash.owner_run_id, v_clash.owner_hook_id);
    END IF;
    SELECT w.run_id, w.hook_id INTO v_clash
      FROM unnest(v_runs, v_hooks, v_tokens) AS w (run_id, hook_id, token)
      JOIN flow_active_hooks AS h ON h.run_id = w.run_id AND h.hook_id = w.hook_id
     WHERE w.token IS NULL OR h.token <> w.token
     LIMIT 1;
    IF FOUND THEN
        PERFORM flow_raise_transition(v_clash.run_id,
            format('hook %s is active with another token', v_clash.hook_id));
    END IF;

    BEGIN
        INSERT INTO flow_active_hooks
            (run_id, hook_id, token, metadata, payload_schema, expires_at, created_sequence,
             created_at)
        SELECT e.run_id, e.hook_id, v_tokens[e.n], flow_json_get(e.payload, 'metadata'),
               flow_json_get(e.payload, 'payload_schema'), e.due_at, e.sequence, e.recorded_at
          FROM unnest(v_events) WITH ORDINALITY
               AS e (run_id, sequence, event_type, hook_id, due_at, payload, recorded_at,
                     event_count, flags, n)
            ON CONFLICT (run_id, hook_id) DO NOTHING;
    EXCEPTION
        -- two hooks of these events share a token; the error itself would show it
        WHEN exclusion_violation THEN
            PERFORM flow_raise_token_conflict(v_runs[1], v_hooks[1], v_runs[1], v_hooks[1]);
    END;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_hooks(flow_event_fact[], integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_hooks(flow_event_fact[], integer)
    IS 'Brings flow_active_hooks up to date with newly stored events.';
