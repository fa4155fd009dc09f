-- flow_next_wakeup: the earliest deadline, due or not, dispatched or not.
-- Arguments: none. Returns at most one row, the first by (due_at, run, kind, subject).
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_next_wakeup()
RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM flow_due(NULL, '9999-12-31 23:59:59.999999+00', 1) AS d  -- all that has a deadline
      LEFT JOIN LATERAL (
            SELECT f.runtime_build FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_next_wakeup() FROM PUBLIC;
COMMENT ON FUNCTION flow_next_wakeup() IS 'The earliest deadline.';
