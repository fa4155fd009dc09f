-- flow_run_info: one run, as the list page shows it, with its lease and task.
-- Arguments: p_run_id. waiting_for is computed: why no live worker takes it.
-- Locks: none. SQLSTATEs: WF001. Callers: client, worker, reader.
CREATE FUNCTION flow_run_info(p_run_id text)
RETURNS TABLE (
    run_id text, workflow_name text, workflow_version text, runtime_build text, queue text,
    status text, head_sequence bigint, blocked_reason text, created_at timestamptz,
    updated_at timestamptz, ended_at timestamptz, lease_epoch bigint, lease_owner text,
    lease_expires_at timestamptz, available_at timestamptz, waiting_for text,
    dead_letter_id bigint, crashes integer, attributes jsonb
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_exists(p_run_id);
    RETURN QUERY
    SELECT r.run_id, r.workflow_name, r.workflow_version, r.runtime_build, r.queue, r.status,
           r.head_sequence, r.blocked_reason, r.created_at, r.updated_at, r.ended_at,
           r.lease_epoch, t.lease_owner, t.lease_expires_at, t.available_at,
           flow_waiting_for(r.run_id, r.queue, r.workflow_name, r.runtime_build, r.status,
                            r.dead_letter_id),
           r.dead_letter_id, coalesce(t.crashes, 0), r.attributes
      FROM flow_runs AS r
      LEFT JOIN flow_tasks AS t ON t.run_id = r.run_id AND t.kind = 'drive_run'
     WHERE r.run_id = p_run_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_run_info(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_run_info(text) IS 'One run with its lease and task.';
