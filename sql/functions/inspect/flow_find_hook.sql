-- flow_find_hook: the run and hook that have a token, among the active ones.
-- Arguments: p_token, the bearer token. Returns no row when there is none.
-- Locks: none. SQLSTATEs: none. Callers: client, worker.
CREATE FUNCTION flow_find_hook(p_token text) RETURNS TABLE (run_id text, hook_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.run_id, h.hook_id FROM flow_active_hooks AS h WHERE h.token = p_token;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_find_hook(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_find_hook(text) IS 'The run and hook that have a token.';
