-- flow_list_runs: the list page, newest first.
-- Arguments: filters, null for no filter (p_blocked true: only blocked runs, false: only others);
--   p_after_created_at and p_after_run_id, taken from the last row of the page before; p_limit,
--   1 to 1000.
-- Locks: none. SQLSTATEs: WF010 limit out of range, or half a cursor. Callers: reader, client.
CREATE FUNCTION flow_list_runs(
    p_status text DEFAULT NULL, p_workflow_name text DEFAULT NULL, p_queue text DEFAULT NULL,
    p_blocked boolean DEFAULT NULL, p_after_created_at timestamptz DEFAULT NULL,
    p_after_run_id text DEFAULT NULL, p_limit integer DEFAULT 100
) RETURNS TABLE (
    run_id text, workflow_name text, workflow_version text, runtime_build text, queue text,
    status text, head_sequence bigint, blocked_reason text, created_at timestamptz,
    updated_at timestamptz, ended_at timestamptz
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
-- the filters differ from call to call: plan for the ones given
SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz := coalesce(p_after_created_at, 'infinity');
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF (p_after_created_at IS NULL) <> (p_after_run_id IS NULL) THEN
        PERFORM flow_raise_argument('after', 'a cursor is both the time and the id of the last row');
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.workflow_name, r.workflow_version, r.runtime_build, r.queue, r.status,
           r.head_sequence, r.blocked_reason, r.created_at, r.updated_at, r.ended_at
      FROM flow_runs AS r
     WHERE (p_status IS NULL OR r.status = p_status)
       AND (p_workflow_name IS NULL OR r.workflow_name = p_workflow_name)
       AND (p_queue IS NULL OR r.queue = p_queue)
       AND (p_blocked IS NULL OR p_blocked AND r.blocked_reason IS NOT NULL
            OR NOT p_blocked AND r.blocked_reason IS NULL)
       AND (r.created_at, r.run_id) < (v_at, coalesce(p_after_run_id, ''))
     ORDER BY r.created_at DESC, r.run_id DESC
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_list_runs(text, text, text, boolean, timestamptz, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_runs(text, text, text, boolean, timestamptz, text, integer)
    IS 'The list page of runs, newest first.';
