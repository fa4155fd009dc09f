-- flow_list_run_ids: run ids in byte order.
-- Arguments: p_after, ids beyond this one; p_limit, 1 to 1000.
-- Locks: none. SQLSTATEs: WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_list_run_ids(p_after text DEFAULT '', p_limit integer DEFAULT 1000)
RETURNS TABLE (run_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    RETURN QUERY
    SELECT r.run_id
      FROM flow_runs AS r
     WHERE r.run_id > coalesce(p_after, '') AND r.head_sequence > 0
     ORDER BY r.run_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_run_ids(text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_run_ids(text, integer) IS 'Run ids in byte order.';
