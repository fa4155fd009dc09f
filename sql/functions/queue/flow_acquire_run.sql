-- flow_acquire_run: takes the lease of one run, whether or not it has a task.
-- Arguments: p_run_id; p_owner, who takes it; p_lease, how long it lasts without a heartbeat.
-- Returns one row, or none when somebody else holds a live lease or the run has ended. The same
--   owner may take its own lease again; the older epoch is lost then. It is also how somebody
--   drives a run whose drive task is a dead letter.
-- Locks, in order: retention guard (shared), run lock, row, queue row.
-- SQLSTATEs: WF001, WF010, WF013. Callers: worker.
CREATE FUNCTION flow_acquire_run(p_run_id text, p_owner text, p_lease interval)
RETURNS TABLE (epoch bigint, wakes bigint, head_sequence bigint, db_now timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_run record;
    v_task record;
    v_now timestamptz;
BEGIN
    PERFORM flow_check_lease(p_owner, p_lease);
    SELECT o.status, o.head_sequence INTO v_run FROM flow_open_run(p_run_id, '{}') AS o;
    IF flow_is_terminal(v_run.status) THEN
        RETURN;
    END IF;
    SELECT t.lease_owner, t.lease_expires_at INTO v_task
      FROM flow_tasks AS t WHERE t.run_id = p_run_id AND t.kind = 'drive_run' FOR UPDATE;
    v_now := flow_now();
    IF NOT FOUND THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id], true);
    ELSIF v_task.lease_owner <> p_owner AND v_task.lease_expires_at > v_now THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH fenced AS (
        UPDATE flow_runs AS r
           SET lease_epoch = r.lease_epoch + 1
         WHERE r.run_id = p_run_id
        RETURNING r.run_id, r.lease_epoch
    )
    UPDATE flow_tasks AS t
       SET lease_owner = p_owner, lease_expires_at = v_now + p_lease, epoch = f.lease_epoch,
           crashes = t.crashes + coalesce(t.lease_owner <> p_owner, false)::integer,
           missing_step = NULL
      FROM fenced AS f
     WHERE t.run_id = f.run_id AND t.kind = 'drive_run'
    RETURNING t.epoch, t.wakes, v_run.head_sequence, v_now;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_acquire_run(text, text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_acquire_run(text, text, interval) IS 'Takes the lease of one run.';
