-- flow_due_wakeups: the earliest deadlines that have passed, dispatched or not.
-- Arguments: p_as_of, due until then, null for now; p_limit, 1 to 1000; p_kind, one kind (wait,
--   step_retry, hook_expiry, step_deadline), or null for all.
-- Order: kind, run, subject, among the p_limit earliest.
-- Locks: none. SQLSTATEs: WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_due_wakeups(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_kind text DEFAULT NULL
) RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM flow_due(p_kind, coalesce(p_as_of, flow_now()), p_limit) AS d
      LEFT JOIN LATERAL (
            SELECT f.runtime_build FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true
     ORDER BY d.kind COLLATE "C", d.run_id COLLATE "C", d.subject_id COLLATE "C";
END
$$;

REVOKE EXECUTE ON FUNCTION flow_due_wakeups(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_due_wakeups(timestamptz, integer, text)
    IS 'The earliest deadlines that have passed.';
