-- flow_enqueue_drives: makes one open drive task of every run, or counts one more reason to look at
-- a run that has one already.
-- Arguments: p_run_ids; unknown runs are left out, and, unless p_force, runs whose drive task is a
--   dead letter. A task that nobody holds becomes available now; one that is leased stays with its
--   holder, who cannot release it without looking again.
-- Locks: queue rows, by run; the run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_enqueue_drives(p_run_ids text[], p_force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_queues text[];
BEGIN
    WITH woken AS (
        INSERT INTO flow_tasks AS t
            (queue, run_id, available_at, enqueued_at, runtime_build, workflow_name, priority,
             concurrency_key)
        SELECT r.queue, r.run_id, v_now, v_now, coalesce(r.runtime_build, ''), r.workflow_name,
               r.priority, r.concurrency_key
          FROM (SELECT DISTINCT i.run_id FROM unnest(p_run_ids) AS i (run_id)
                 ORDER BY i.run_id) AS g
         CROSS JOIN LATERAL (
                SELECT f.queue, f.run_id, f.runtime_build, f.workflow_name, f.dead_letter_id,
                       f.priority, f.concurrency_key
                  FROM flow_runs AS f WHERE f.run_id = g.run_id LIMIT 1) AS r
         WHERE r.dead_letter_id IS NULL OR p_force
            ON CONFLICT (run_id) WHERE kind = 'drive_run' DO UPDATE
           SET wakes = t.wakes + 1,
               available_at = CASE WHEN t.lease_owner IS NULL
                                   THEN least(t.available_at, excluded.available_at)
                                   ELSE t.available_at END
        RETURNING t.queue
    )
    SELECT array_agg(DISTINCT w.queue) INTO v_queues FROM woken AS w;
    IF v_queues IS NOT NULL THEN
        PERFORM flow_notify_idle(v_queues);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_drives(text[], boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_drives(text[], boolean)
    IS 'Makes or wakes the drive tasks of runs.';
