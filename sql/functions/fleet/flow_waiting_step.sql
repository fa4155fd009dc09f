-- flow_waiting_step: why nobody takes a step that its run has left to another queue.
-- Arguments: p_run_id, a run with nothing else to do now; p_build, its build.
-- Returns null when there is no such step, or a live worker has it or will take it; else the
--   reason, for the oldest of them: its queue is paused, no live worker of that queue knows the
--   step, or its task is a dead letter.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_waiting_step(p_run_id text, p_build text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_task record;
    v_paused boolean;
BEGIN
    FOR v_task IN
        SELECT t.queue, t.workflow_name, substr(t.workflow_name, 6) AS step
          FROM flow_tasks AS t
         WHERE t.run_id = p_run_id AND t.kind = 'run_step'
           AND (t.lease_owner IS NULL OR t.lease_expires_at <= v_now)
         ORDER BY t.task_id + 0  -- not in the order of the key: it would be walked whole
         LIMIT 20
    LOOP
        v_paused := EXISTS (SELECT FROM flow_queues AS q WHERE q.queue = v_task.queue AND q.paused);
        IF v_paused THEN
            RETURN format('step %s waits for queue %s, which is paused', v_task.step, v_task.queue);
        END IF;
        PERFORM FROM flow_workers AS w
          WHERE w.last_beat > v_now - 3 * w.beat_every AND v_task.queue = ANY (w.queues)
            AND flow_worker_admits(w, p_build)
            AND (w.steps IS NULL OR v_task.step = ANY (w.steps));
        IF NOT FOUND THEN
            RETURN format('no worker for step %s on queue %s', v_task.step, v_task.queue);
        END IF;
    END LOOP;
    -- a letter whose step was closed meanwhile holds nothing up
    SELECT d.dead_letter_id, d.queue, d.payload ->> 'step_name' AS step
      INTO v_task
      FROM flow_dead_letters AS d
     WHERE d.run_id = p_run_id AND d.kind = 'run_step'
       AND 'step_started' = (
            SELECT e.event_type FROM flow_events AS e
             WHERE e.run_id = p_run_id AND e.subject_id = d.payload ->> 'step_id'
             ORDER BY e.sequence DESC LIMIT 1)
     ORDER BY d.dead_letter_id
     LIMIT 1;
    IF FOUND THEN
        RETURN format('step %s is dead letter %s of queue %s: redrive it', v_task.step,
                      v_task.dead_letter_id, v_task.queue);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_waiting_step(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_waiting_step(text, text)
    IS 'Why nobody takes a step that its run has left to another queue.';
