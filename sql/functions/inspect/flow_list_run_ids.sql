-- flow_list_run_ids: run ids in byte order, a page at a time.
-- Arguments: p_after, the last id already seen; p_limit, 1 to 1000.
-- Locks: none. SQLSTATEs: WF010. Callers: reader, client.
CREATE FUNCTION flow_list_run_ids(p_after text DEFAULT '', p_limit integer DEFAULT 1000)
RETURNS TABLE (run_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    RETURN QUERY
    SELECT r.run_id FROM flow_runs AS r WHERE r.run_id > p_after ORDER BY r.run_id LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_run_ids(text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_run_ids(text, integer) IS 'Run ids in byte order.';
