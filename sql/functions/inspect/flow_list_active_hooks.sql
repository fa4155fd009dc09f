-- flow_list_active_hooks: the hooks that can be answered. The rows hold tokens, which are secrets.
-- Arguments: p_run_id, one run, or null for all; p_after_run_id and p_after_hook_id, the last row
--   of the page before; p_limit, 1 to 1000. Order: run, hook.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker.
CREATE FUNCTION flow_list_active_hooks(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_hook_id text DEFAULT '',
    p_limit integer DEFAULT 1000
) RETURNS TABLE (
    run_id text, hook_id text, token text, metadata json, expires_at timestamptz,
    created_at timestamptz, payload_schema json
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_low text := coalesce(p_run_id, '');
    v_high text := coalesce(p_run_id, '~');  -- no run id is beyond it
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_check_exists(p_run_id);
    END IF;
    RETURN QUERY
    SELECT h.run_id, h.hook_id, h.token, h.metadata, h.expires_at, h.created_at,
           h.payload_schema
      FROM flow_active_hooks AS h
     WHERE h.run_id BETWEEN v_low AND v_high
       AND (h.run_id, h.hook_id) > (coalesce(p_after_run_id, ''), coalesce(p_after_hook_id, ''))
     ORDER BY h.run_id, h.hook_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_active_hooks(text, text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_active_hooks(text, text, text, integer)
    IS 'The hooks that can be answered, with their tokens.';
