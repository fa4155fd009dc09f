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
    v_runs text[];
    v_made text[];
    v_queues text[];
    v_woken text[];
    v_one record;
    v_queue text;
BEGIN
    IF cardinality(p_run_ids) = 1 THEN
        -- a run alone: to get the statements below ready costs more than the row does
        SELECT r.queue, r.runtime_build, r.workflow_name, r.priority, r.concurrency_key INTO v_one
          FROM flow_runs AS r
         WHERE r.run_id = p_run_ids[1] AND (r.dead_letter_id IS NULL OR p_force);
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE flow_tasks AS t
           SET wakes = t.wakes + 1,
               available_at = CASE WHEN t.lease_owner IS NULL THEN least(t.available_at, v_now)
                                   ELSE t.available_at END
         WHERE t.run_id = p_run_ids[1] AND t.kind = 'drive_run'
        RETURNING t.queue INTO v_queue;
        IF NOT FOUND THEN
            v_queue := v_one.queue;
            INSERT INTO flow_tasks (queue, run_id, available_at, enqueued_at, runtime_build,
                workflow_name, priority, concurrency_key)
            VALUES (v_queue, p_run_ids[1], v_now, v_now, coalesce(v_one.runtime_build, ''),
                v_one.workflow_name, v_one.priority, v_one.concurrency_key);
        END IF;
        PERFORM flow_notify_idle(ARRAY[v_queue]);
        RETURN;
    END IF;
    v_runs := ARRAY(SELECT DISTINCT i.run_id FROM unnest(p_run_ids) AS i (run_id)
                     ORDER BY i.run_id);
    -- two statements in place of ON CONFLICT, which makes a speculative row and a second WAL
    -- record of each new task; the run locks keep others from making one meanwhile
    WITH made AS (
        INSERT INTO flow_tasks AS t
            (queue, run_id, available_at, enqueued_at, runtime_build, workflow_name, priority,
             concurrency_key)
        SELECT r.queue, r.run_id, v_now, v_now, coalesce(r.runtime_build, ''), r.workflow_name,
               r.priority, r.concurrency_key
          FROM unnest(v_runs) AS g (run_id)
         CROSS JOIN LATERAL (
                SELECT f.queue, f.run_id, f.runtime_build, f.workflow_name, f.dead_letter_id,
                       f.priority, f.concurrency_key
                  FROM flow_runs AS f WHERE f.run_id = g.run_id LIMIT 1) AS r
          LEFT JOIN LATERAL (
                SELECT true AS is_there FROM flow_tasks AS f
                 WHERE f.run_id = g.run_id AND f.kind = 'drive_run' LIMIT 1) AS o ON true
         WHERE (r.dead_letter_id IS NULL OR p_force) AND o.is_there IS NULL
        RETURNING t.run_id, t.queue
    )
    SELECT array_agg(m.run_id), array_agg(DISTINCT m.queue) INTO v_made, v_queues FROM made AS m;
    IF coalesce(cardinality(v_made), 0) < cardinality(v_runs) THEN
        WITH woken AS (
            UPDATE flow_tasks AS t
               SET wakes = t.wakes + 1,
                   available_at = CASE WHEN t.lease_owner IS NULL
                                       THEN least(t.available_at, v_now)
                                       ELSE t.available_at END
             WHERE t.kind = 'drive_run'
               AND t.run_id = ANY (CASE WHEN v_made IS NULL THEN v_runs
                                        ELSE ARRAY(SELECT g.run_id FROM unnest(v_runs) AS g (run_id)
                                                   EXCEPT SELECT m.run_id
                                                            FROM unnest(v_made) AS m (run_id)) END)
               AND (p_force OR EXISTS (SELECT FROM flow_runs AS r
                                        WHERE r.run_id = t.run_id AND r.dead_letter_id IS NULL))
            RETURNING t.queue
        )
        SELECT array_agg(DISTINCT w.queue) INTO v_woken FROM woken AS w;
        v_queues := v_queues || v_woken;
    END IF;
    IF v_queues IS NOT NULL THEN
        PERFORM flow_notify_idle(v_queues);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_drives(text[], boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_drives(text[], boolean)
    IS 'Makes or wakes the drive tasks of runs.';
