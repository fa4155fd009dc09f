-- flow_due_wakeups: deadlines that have passed, the earliest p_limit of them, ordered by kind, run
--   and id; whether a task was already made of them does not matter.
-- Arguments: p_as_of, null for now; p_limit, 1 to 1000; p_kind, null for all kinds.
-- Locks: none. SQLSTATEs: WF010. Callers: reader, client.
CREATE FUNCTION flow_due_wakeups(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_kind text DEFAULT NULL
) RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    v_as_of timestamptz := coalesce(p_as_of, flow_now());
BEGIN
    PERFORM flow_check_limit(p_limit);
    -- The two partial indexes split the table; each half is read in order and cut.
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM (SELECT b.run_id, b.kind, b.subject_id, b.due_at
              FROM ((SELECT w.run_id, w.kind, w.subject_id, w.due_at FROM scheduled_wakeups AS w
                      WHERE w.dispatched_at IS NULL AND w.due_at <= v_as_of
                        AND (p_kind IS NULL OR w.kind = p_kind)
                      ORDER BY w.due_at, w.run_id, w.kind, w.subject_id LIMIT p_limit)
                     UNION ALL
                    (SELECT w.run_id, w.kind, w.subject_id, w.due_at FROM scheduled_wakeups AS w
                      WHERE w.dispatched_at IS NOT NULL AND w.due_at <= v_as_of
                        AND (p_kind IS NULL OR w.kind = p_kind)
                      ORDER BY w.due_at, w.run_id, w.kind, w.subject_id LIMIT p_limit)) AS b
             ORDER BY b.due_at, b.run_id, b.kind, b.subject_id
             LIMIT p_limit) AS d
      JOIN flow_runs AS r ON r.run_id = d.run_id
     ORDER BY d.kind, d.run_id, d.subject_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_due_wakeups(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_due_wakeups(timestamptz, integer, text) IS 'Deadlines that have passed.';
