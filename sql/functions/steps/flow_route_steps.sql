-- flow_route_steps: an append of the driver of a run, with the attempts that it leaves to workers
-- of other queues: their tasks are made in the transaction of their step_started, or not at all.
-- Arguments: p_append, an array of one element as flow_append_many takes it; p_run_id, its run;
--   p_steps, a JSON array of {"step_id", "step_name", "attempt", "queue", "due_in_us"?, "due_at"?}:
--   the deadline at which the run is woken, the earlier of a time counted from this append and an
--   RFC 3339 one.
-- Returns what flow_append_batch returns. A refused append makes no tasks.
--   A task is of kind run_step, has the priority and the build of its run, and can only be claimed
--   by who knows the step: workflow_name holds 'step:' and its name. Until the attempt has an
--   outcome the run is suspended, and a row of scheduled_wakeups says so.
-- Locks: as flow_append_many, then rows of queues with a hint. SQLSTATEs: those of
-- flow_append_many; WF010. Callers: worker.
CREATE FUNCTION flow_route_steps(p_append json, p_run_id text, p_steps json)
RETURNS TABLE (recorded_at timestamptz, marks text, heads text, exceptions text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_steps flow_step_task[] := flow_read_step_tasks(p_steps);
    v_done record;
BEGIN
    SELECT a.recorded_at, a.marks, a.heads, a.exceptions,
           coalesce((a.exceptions::json -> 0 ->> 1) = 'appended', true) AS is_appended
      INTO v_done FROM flow_append_batch(p_append) AS a;
    IF v_done.is_appended THEN
        PERFORM flow_make_step_tasks(p_run_id, v_steps, v_done.recorded_at);
    END IF;
    RETURN QUERY SELECT v_done.recorded_at, v_done.marks, v_done.heads, v_done.exceptions;
END
$$;

-- The same for attempts that were begun before, where a task is missing: in a history that was
-- imported, say. One that has a task, or a dead letter, or an outcome, is left alone.
-- Locks: as flow_lock_runs. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_ensure_step_tasks(p_run_id text, p_steps json) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_steps flow_step_task[] := flow_read_step_tasks(p_steps);
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT array_agg(s) INTO v_steps
      FROM unnest(v_steps) AS s
     WHERE NOT EXISTS (
            SELECT FROM flow_tasks AS t
             WHERE t.run_id = p_run_id AND t.kind = 'run_step'
               AND t.payload ->> 'step_id' = s.step_id
               AND t.payload ->> 'attempt' = s.attempt::text)
       AND NOT EXISTS (
            SELECT FROM flow_dead_letters AS d
             WHERE d.run_id = p_run_id AND d.kind = 'run_step'
               AND d.payload ->> 'step_id' = s.step_id
               AND d.payload ->> 'attempt' = s.attempt::text)
       AND flow_step_awaits(p_run_id, s.step_id, s.attempt);
    IF v_steps IS NOT NULL THEN
        PERFORM flow_make_step_tasks(p_run_id, v_steps, flow_now());
    END IF;
END
$$;

CREATE FUNCTION flow_make_step_tasks(
    p_run_id text, p_steps flow_step_task[], p_at timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_queues text[];
BEGIN
    IF p_steps IS NULL OR NOT EXISTS (SELECT FROM flow_runs AS r WHERE r.run_id = p_run_id) THEN
        RETURN;
    END IF;
    WITH made AS (
        INSERT INTO flow_tasks (queue, run_id, kind, payload, priority, available_at,
            enqueued_at, runtime_build, workflow_name, max_attempts, retry_delay)
        SELECT s.queue, p_run_id, 'run_step',
               json_build_object('step_id', s.step_id, 'attempt', s.attempt,
                                 'step_name', s.step_name),
               r.priority, p_at, p_at, coalesce(r.runtime_build, ''), 'step:' || s.step_name,
               20, interval '1 second'
          FROM unnest(p_steps) AS s
         CROSS JOIN LATERAL (
                SELECT f.runtime_build, f.priority FROM flow_runs AS f
                 WHERE f.run_id = p_run_id LIMIT 1) AS r
        RETURNING queue
    )
    SELECT array_agg(DISTINCT m.queue) INTO v_queues FROM made AS m;
    INSERT INTO scheduled_wakeups AS w (run_id, kind, subject_id, due_at)
    SELECT DISTINCT ON (s.step_id) p_run_id, 'step_deadline', s.step_id,
           coalesce(least(flow_time_after(p_at, s.due_in_us), s.due_at), 'infinity')
      FROM unnest(p_steps) AS s
     ORDER BY s.step_id
        ON CONFLICT (run_id, kind, subject_id) DO UPDATE
       SET due_at = excluded.due_at, dispatched_at = NULL;
    PERFORM flow_lower_mark('', (
        SELECT min(w.due_at) FROM scheduled_wakeups AS w
         WHERE w.run_id = p_run_id AND w.kind = 'step_deadline'));
    UPDATE flow_runs AS r SET status = 'suspended'
     WHERE r.run_id = p_run_id AND r.status = 'running';
    PERFORM flow_notify_idle(v_queues);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_route_steps(json, text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_ensure_step_tasks(text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_make_step_tasks(text, flow_step_task[], timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_ensure_step_tasks(text, json)
    IS 'Makes the tasks of begun attempts that have none.';
COMMENT ON FUNCTION flow_make_step_tasks(text, flow_step_task[], timestamptz)
    IS 'Makes the tasks of attempts that workers of other queues carry out.';
COMMENT ON FUNCTION flow_route_steps(json, text, json)
    IS 'Appends, and makes the tasks of attempts that workers of other queues carry out.';
