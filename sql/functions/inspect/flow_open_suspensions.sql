-- flow_open_suspensions: what open runs wait for.
-- Arguments: p_run_id, one run, or null for all; p_after_run_id, p_after_kind and
--   p_after_subject_id, the last row of the page before (without a kind: everything beyond that
--   run); p_limit, 1 to 1000; p_as_of, the moment due is judged at, null for now.
-- Returns run_id, kind (wait, hook, retry, or step for one in another queue), subject_id, due_at,
--   and due: whether the deadline has passed, both null for what has none. Order: run, kind as
--   listed, subject.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_open_suspensions(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_kind text DEFAULT '',
    p_after_subject_id text DEFAULT '', p_limit integer DEFAULT 1000,
    p_as_of timestamptz DEFAULT NULL
) RETURNS TABLE (run_id text, kind text, subject_id text, due_at timestamptz, due boolean)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := coalesce(p_as_of, flow_now());
    v_after text := coalesce(p_after_run_id, '');
    v_low text := greatest(coalesce(p_run_id, ''), coalesce(p_after_run_id, '') COLLATE "C");
    v_high text := coalesce(p_run_id, '~');  -- no run id is beyond it
    v_rank integer := CASE p_after_kind
        WHEN 'wait' THEN 0 WHEN 'hook' THEN 1 WHEN 'retry' THEN 2 WHEN 'step' THEN 3 ELSE 4 END;
    v_subject text := coalesce(p_after_subject_id, '');
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_check_exists(p_run_id);
    END IF;
    RETURN QUERY
    SELECT s.run_id,
           CASE s.rank WHEN 0 THEN 'wait' WHEN 1 THEN 'hook' WHEN 2 THEN 'retry' ELSE 'step' END,
           s.subject_id, s.due_at, s.due_at <= v_until
      FROM ((SELECT w.run_id, k.rank, w.subject_id, nullif(w.due_at, 'infinity')
               FROM scheduled_wakeups AS w
              CROSS JOIN LATERAL (
                    SELECT CASE w.kind WHEN 'wait' THEN 0 WHEN 'step_retry' THEN 2
                                       WHEN 'step_deadline' THEN 3 END AS rank) AS k
              WHERE w.run_id BETWEEN v_low AND v_high AND k.rank IS NOT NULL
                AND (w.run_id, k.rank, w.subject_id) > (v_after, v_rank, v_subject)
              ORDER BY w.run_id, k.rank, w.subject_id
              LIMIT p_limit)
            UNION ALL
            (SELECT h.run_id, 1 AS rank, h.hook_id, h.expires_at
               FROM flow_active_hooks AS h
              WHERE h.run_id BETWEEN v_low AND v_high
                AND (h.run_id, 1, h.hook_id) > (v_after, v_rank, v_subject)
              ORDER BY h.run_id, h.hook_id
              LIMIT p_limit)) AS s (run_id, rank, subject_id, due_at)
     ORDER BY s.run_id, s.rank, s.subject_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_open_suspensions(text, text, text, text, integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_open_suspensions(text, text, text, text, integer, timestamptz)
    IS 'What open runs wait for.';
