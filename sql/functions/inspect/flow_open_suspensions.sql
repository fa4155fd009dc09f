-- flow_open_suspensions: what open runs wait for, ordered by run, kind (wait, hook, retry) and id.
-- Arguments: p_run_id, null for all runs; the cursor p_after_*, taken from the last row of the page
--   before; p_limit, 1 to 1000; p_as_of, the time due is judged by, null for now.
--   due is null for a hook that never expires.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: reader, client.
CREATE FUNCTION flow_open_suspensions(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_kind text DEFAULT '',
    p_after_subject_id text DEFAULT '', p_limit integer DEFAULT 1000,
    p_as_of timestamptz DEFAULT NULL
) RETURNS TABLE (run_id text, kind text, subject_id text, due_at timestamptz, due boolean)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    v_as_of timestamptz := coalesce(p_as_of, flow_now());
    v_rank integer := array_position(ARRAY['wait', 'hook', 'retry'], p_after_kind);
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM flow_runs AS r WHERE r.run_id = p_run_id) THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
    -- Each half is cut to its own first page by its key before the two are merged: a run has few
    -- open items, so whole runs are taken from the cursor's run on.
    RETURN QUERY
    SELECT s.run_id, s.kind, s.subject_id, s.due_at, s.due_at <= v_as_of
      FROM (SELECT w.run_id, CASE w.kind WHEN 'wait' THEN 'wait' ELSE 'retry' END AS kind,
                   CASE w.kind WHEN 'wait' THEN 1 ELSE 3 END AS rank, w.subject_id, w.due_at
              FROM (SELECT u.run_id, u.kind, u.subject_id, u.due_at FROM scheduled_wakeups AS u
                     WHERE (p_run_id IS NULL OR u.run_id = p_run_id)
                       AND u.run_id >= p_after_run_id AND u.kind IN ('wait', 'step_retry')
                     ORDER BY u.run_id
                     FETCH FIRST (p_limit + flow_suspensions_of(p_after_run_id)) ROWS WITH TIES)
                   AS w
             UNION ALL
            SELECT h.run_id, 'hook', 2, h.hook_id, h.expires_at
              FROM (SELECT k.run_id, k.hook_id, k.expires_at FROM flow_active_hooks AS k
                     WHERE (p_run_id IS NULL OR k.run_id = p_run_id)
                       AND k.run_id >= p_after_run_id
                     ORDER BY k.run_id
                     FETCH FIRST (p_limit + flow_suspensions_of(p_after_run_id)) ROWS WITH TIES)
                   AS h) AS s
     WHERE s.run_id > p_after_run_id
        OR (s.rank, s.subject_id) > (coalesce(v_rank, 0), p_after_subject_id)
     ORDER BY s.run_id, s.rank, s.subject_id
     LIMIT p_limit;
END
$$;

-- How many items of the cursor's run may have to be skipped.
CREATE FUNCTION flow_suspensions_of(p_run_id text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT (SELECT count(*) FROM scheduled_wakeups AS w WHERE w.run_id = p_run_id)
         + (SELECT count(*) FROM flow_active_hooks AS h WHERE h.run_id = p_run_id)
$$;

REVOKE EXECUTE ON FUNCTION
    flow_open_suspensions(text, text, text, text, integer, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_suspensions_of(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_open_suspensions(text, text, text, text, integer, timestamptz)
    IS 'What open runs wait for.';
COMMENT ON FUNCTION flow_suspensions_of(text) IS 'How many things a run waits for.';
