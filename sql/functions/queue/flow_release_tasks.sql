-- flow_release_tasks: gives leases back at once with the work left, as a worker that stops does.
-- Arguments: p_tasks, a JSON array of {"task_id", "epoch"}, of any kind; p_delay, how long nobody
--   shall take them. The attempt that was not used is not counted, nor is it a crash.
-- Returns one row an element, in order: whether the lease was held and is given back. A run that is
--   busy right now is not waited for, or one client that takes its time would keep all others: its
--   lease is not given back by this call (flow_give_back waits).
-- Locks, in order: retention guard (shared), run locks if free, queue rows by run and task.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_release_tasks(p_tasks json, p_delay interval DEFAULT '0')
RETURNS TABLE (task_id bigint, released boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_epochs bigint[];
    v_free text[];
    v_mine bigint[];
    v_done bigint[];
    v_queues text[];
BEGIN
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    BEGIN
        SELECT array_agg(l.task_id), array_agg(l.epoch) INTO v_tasks, v_epochs
          FROM json_to_recordset(p_tasks) AS l (task_id bigint, epoch bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_tasks', 'it must be an array of {"task_id", "epoch"}');
    END;
    v_free := flow_try_lock_runs(ARRAY(
        SELECT t.run_id FROM flow_tasks AS t
         WHERE t.task_id = ANY (v_tasks) AND t.kind = 'drive_run' ORDER BY t.run_id));
    v_mine := ARRAY(
        SELECT t.task_id FROM flow_tasks AS t
         WHERE t.task_id = ANY (v_tasks)
           AND (t.kind <> 'drive_run' OR t.run_id = ANY (v_free))
         ORDER BY t.run_id, t.task_id
           FOR UPDATE);
    WITH back AS (
        UPDATE flow_tasks AS t
           SET lease_owner = NULL, lease_expires_at = NULL,
               available_at = flow_now() + greatest(coalesce(p_delay, '0'), '0'),
               attempts = greatest(t.attempts - 1, 0)
         WHERE t.task_id = ANY (v_mine) AND t.lease_expires_at IS NOT NULL
           AND t.epoch = v_epochs[array_position(v_tasks, t.task_id)]
        RETURNING t.task_id, t.queue
    )
    SELECT array_agg(b.task_id), array_agg(DISTINCT b.queue) INTO v_done, v_queues FROM back AS b;
    IF v_queues IS NOT NULL THEN
        PERFORM flow_notify_idle(v_queues);
    END IF;
    RETURN QUERY
    SELECT l.task_id, coalesce(l.task_id = ANY (v_done), false)
      FROM unnest(v_tasks) WITH ORDINALITY AS l (task_id, n)
     ORDER BY l.n;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_tasks(json, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_tasks(json, interval)
    IS 'Gives leases back at once with the work left.';
