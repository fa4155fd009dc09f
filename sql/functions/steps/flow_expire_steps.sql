-- flow_expire_steps: fails attempts in other queues whose deadline has passed, where no worker
-- has them.
-- Arguments: p_run_id; p_steps, a JSON array of {"step_id", "attempt", "not_begun"?, "not_closed"?,
--   "closes_at"?}: not_begun is the event (as of flow_append_many, step_non_retryable say) if the
--   time has passed within which a worker should have taken it, not_closed if that has in which the
--   step should have ended; closes_at (RFC 3339), when the latter does.
-- Returns one row a step. outcome: expired, its event is appended and its task gone; at_work, a
--   worker has it; taken, a worker had it in time; superseded, it has its outcome already; or why
--   the append was refused, as of flow_append_many. Where a deadline is left, the run is woken at
--   that: at closes_at, or when the lease of the worker would end that still has it then.
-- Whether the deadline has passed is the caller's to know. Between a claim of the task and this,
-- the row of the task decides: whoever locks it first.
-- Locks, in order: run lock; queue rows of the tasks, waiting for a claim at work; as
-- flow_append_many; the queue row of the run. SQLSTATEs: those of flow_append_many;
-- WF010. Callers: worker.
CREATE FUNCTION flow_expire_steps(p_run_id text, p_steps json)
RETURNS TABLE (step_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_step record;
    v_task record;
    v_event json;
    v_due timestamptz;
    v_expired boolean := false;
BEGIN
    BEGIN
        PERFORM flow_deadline(s.closes_at)
           FROM json_to_recordset(p_steps)
                AS s (step_id text, attempt integer, not_begun json, not_closed json,
                      closes_at text);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_steps', 'it must be an array of {"step_id", "attempt", '
            '"not_begun"?, "not_closed"?, "closes_at"?}');
    END;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    FOR v_step IN
        SELECT s.step_id, s.attempt, s.not_begun, s.not_closed, s.closes_at
          FROM json_to_recordset(p_steps)
               AS s (step_id text, attempt integer, not_begun json, not_closed json, closes_at text)
    LOOP
        step_id := v_step.step_id;
        IF NOT flow_step_awaits(p_run_id, v_step.step_id, v_step.attempt) THEN
            outcome := 'superseded';
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT t.task_id, t.epoch, t.lease_expires_at INTO v_task
          FROM flow_tasks AS t
         WHERE t.run_id = p_run_id AND t.kind = 'run_step'
           AND t.payload ->> 'step_id' = v_step.step_id
           AND t.payload ->> 'attempt' = v_step.attempt::text
           FOR UPDATE;
        -- a fence, or a dead letter in its place: a worker has begun it
        v_event := CASE WHEN v_task.epoch IS NULL AND v_task.task_id IS NOT NULL
                        THEN coalesce(v_step.not_begun, v_step.not_closed)
                        ELSE v_step.not_closed END;
        v_due := coalesce(flow_deadline(v_step.closes_at), 'infinity');
        IF v_task.lease_expires_at > flow_now() THEN
            outcome := 'at_work';
            IF v_event IS NOT NULL THEN
                v_due := v_task.lease_expires_at;
            END IF;
        ELSIF v_event IS NULL THEN
            outcome := 'taken';
        ELSE
            SELECT a.outcome INTO outcome
              FROM flow_append_outcome(p_run_id, v_step.step_id, v_task.task_id, v_event) AS a;
            IF outcome = 'appended' THEN
                outcome := 'expired';
                v_expired := true;
            END IF;
            RETURN NEXT;
            CONTINUE;
        END IF;
        UPDATE scheduled_wakeups AS w
           SET due_at = v_due, dispatched_at = NULL
         WHERE w.run_id = p_run_id AND w.kind = 'step_deadline'
           AND w.subject_id = v_step.step_id;
        PERFORM flow_lower_mark('', v_due);
        RETURN NEXT;
    END LOOP;
    IF v_expired THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_expire_steps(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_expire_steps(text, json)
    IS 'Fails attempts in other queues whose deadline has passed while no worker has them.';
