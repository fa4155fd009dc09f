-- flow_due: the earliest wakeups that are due, dispatched or not.
-- Arguments: p_kind, one kind or null for all; p_until, due until then; p_limit.
-- Both partial indexes are read in order and merged, so the cost does not grow with what is not
--   due.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_due(p_kind text, p_until timestamptz, p_limit integer)
RETURNS TABLE (run_id text, kind text, subject_id text, due_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at
      FROM ((SELECT w.run_id, w.kind, w.subject_id, w.due_at
               FROM scheduled_wakeups AS w
              WHERE w.dispatched_at IS NULL AND w.due_at <= p_until
                AND (p_kind IS NULL OR w.kind = p_kind)
              ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
              LIMIT p_limit)
            UNION ALL
            (SELECT w.run_id, w.kind, w.subject_id, w.due_at
               FROM scheduled_wakeups AS w
              WHERE w.dispatched_at IS NOT NULL AND w.due_at <= p_until
                AND (p_kind IS NULL OR w.kind = p_kind)
              ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
              LIMIT p_limit)) AS d
     ORDER BY d.due_at, d.run_id, d.kind, d.subject_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_due(text, timestamptz, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_due(text, timestamptz, integer) IS 'The earliest wakeups that are due.';
