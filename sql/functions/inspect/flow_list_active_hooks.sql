-- flow_list_active_hooks: hooks that can be answered, ordered by run and hook.
-- Arguments: p_run_id, null for all runs; the cursor p_after_*; p_limit, 1 to 1000.
--   The token is a credential: grant this function only to who may answer hooks.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client.
CREATE FUNCTION flow_list_active_hooks(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_hook_id text DEFAULT '',
    p_limit integer DEFAULT 1000
) RETURNS TABLE (
    run_id text, hook_id text, token text, metadata json, expires_at timestamptz,
    created_at timestamptz
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM flow_runs AS r WHERE r.run_id = p_run_id) THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
    RETURN QUERY
    SELECT h.run_id, h.hook_id, h.token, h.metadata, h.expires_at, h.created_at
      FROM flow_active_hooks AS h
     WHERE (p_run_id IS NULL OR h.run_id = p_run_id)
       AND (h.run_id, h.hook_id) > (p_after_run_id, p_after_hook_id)
     ORDER BY h.run_id, h.hook_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_active_hooks(text, text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_active_hooks(text, text, text, integer)
    IS 'Hooks that can be answered.';
