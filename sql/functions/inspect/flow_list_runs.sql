-- flow_list_runs: a page of runs, newest first.
-- Arguments: filters that are null do not filter: p_status, p_workflow_name, p_queue, p_blocked;
--   p_after_created_at and p_after_run_id, the last row of the page before; p_limit, 1 to 1000.
-- The text of the statement holds only the filters that are given, and names the order of the index
--   that it shall use: by status, by workflow, by blocked, or by time with the rest as a filter.
--   Pending, running and suspended are filters among the open runs: an index that told them apart
--   would be written each time a run is suspended or goes on.
-- Order: created_at descending, then run_id. Locks: none. SQLSTATEs: WF010.
-- Callers: client, worker, reader.
CREATE FUNCTION flow_list_runs(
    p_status text DEFAULT NULL, p_workflow_name text DEFAULT NULL, p_queue text DEFAULT NULL,
    p_blocked boolean DEFAULT NULL, p_after_created_at timestamptz DEFAULT NULL,
    p_after_run_id text DEFAULT NULL, p_limit integer DEFAULT 100
) RETURNS TABLE (
    run_id text, workflow_name text, workflow_version text, runtime_build text, queue text,
    status text, head_sequence bigint, blocked_reason text, created_at timestamptz,
    updated_at timestamptz, ended_at timestamptz, waiting_for text, attributes jsonb
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
-- whatever the planner knows of the table, the index that has the order is the one to walk
SET enable_sort = off SET enable_incremental_sort = off
AS $$
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_status <> ALL (ARRAY['pending', 'running', 'suspended', 'cancelling', 'completed',
                              'failed', 'cancelled', 'continued_as_new'])
    THEN
        PERFORM flow_raise_argument('p_status', 'there is no such status');
    END IF;
    RETURN QUERY EXECUTE concat(
        'SELECT r.run_id, r.workflow_name, r.workflow_version, r.runtime_build, r.queue, r.status,
                r.head_sequence, r.blocked_reason, r.created_at, r.updated_at, r.ended_at,
                flow_waiting_for(r.run_id, r.queue, r.workflow_name, r.runtime_build, r.status,
                                 r.dead_letter_id), r.attributes
           FROM flow_runs AS r
          WHERE r.head_sequence > 0',
        CASE WHEN p_status IN ('pending', 'running', 'suspended')
             THEN ' AND r.listed_as = ''open'' AND r.status = $1'
             WHEN p_status IS NOT NULL THEN ' AND r.listed_as = $1' END,
        CASE WHEN p_workflow_name IS NOT NULL THEN ' AND r.workflow_name = $2' END,
        CASE WHEN p_queue IS NOT NULL THEN ' AND r.queue = $3' END,
        CASE p_blocked WHEN true THEN ' AND r.blocked_reason IS NOT NULL'
                       WHEN false THEN ' AND r.blocked_reason IS NULL' END,
        CASE WHEN p_after_created_at IS NOT NULL THEN ' AND r.created_at <= $4
            AND (r.created_at < $4 OR r.run_id > $5)' END,
        ' ORDER BY r.created_at DESC, r.run_id',
        CASE WHEN p_status IS NULL AND p_workflow_name IS NULL AND p_blocked IS NOT true
             THEN ' COLLATE "POSIX"' END,
        ' LIMIT $6')
    USING p_status, p_workflow_name, p_queue, p_after_created_at, coalesce(p_after_run_id, ''),
          p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_list_runs(text, text, text, boolean, timestamptz, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_runs(text, text, text, boolean, timestamptz, text, integer)
    IS 'A page of runs, newest first.';
