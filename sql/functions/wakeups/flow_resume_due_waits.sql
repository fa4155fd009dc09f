-- flow_resume_due_waits: completes every wait that is due, set-based.
-- Arguments: p_as_of, what is due until then, null for now; p_limit, 1 to 1000, the earliest first;
--   p_run_id, one run, or null for all.
-- Returns only what this call settled: of several concurrent calls exactly one returns a row.
-- Locks, in order: retention guard (shared), run locks (busy runs are left for the next call unless
--   p_run_id names one), rows, queue rows.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_resume_due_waits(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_run_id text DEFAULT NULL
) RETURNS TABLE (run_id text, wait_id text, due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.due_at
      FROM flow_settle_due('wait', p_as_of, p_limit, p_run_id) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_due_waits(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_due_waits(timestamptz, integer, text)
    IS 'Completes every wait that is due.';
