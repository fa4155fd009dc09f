-- flow_settle_step: records how an attempt ended that a worker of another queue carried out,
-- removes its task and wakes its run, all in one transaction.
-- Arguments: p_run_id; p_task_id and p_epoch, the task and its fence; p_step_id; p_attempt;
--   p_event, one event of flow_append_many: step_completed, step_retrying, step_failed or
--   step_non_retryable. What else follows from it is the driver's. p_is_deferrable as of
--   flow_complete_step.
-- Returns one row. outcome: appended; lease_lost, when the task is somebody else's by now, or done;
--   transaction_ended as of flow_complete_step; superseded, when nobody waits for this attempt any
--   more; run_terminal, run_not_found, invalid as of flow_append_many. Unless it is appended
--   nothing was changed.
-- Locks, in order: as flow_append_many; the queue rows of the task and of the run.
-- SQLSTATEs: those of flow_append_many. Callers: worker.
CREATE FUNCTION flow_settle_step(
    p_run_id text, p_task_id bigint, p_epoch bigint, p_step_id text, p_attempt integer,
    p_event json, p_is_deferrable boolean DEFAULT false
) RETURNS TABLE (outcome text, head_sequence bigint, recorded_at timestamptz, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
BEGIN
    IF p_is_deferrable AND current_setting('transaction_deferrable') <> 'on' THEN
        RETURN QUERY SELECT 'transaction_ended', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id = p_task_id AND t.kind = 'run_step' AND t.run_id = p_run_id
        AND t.epoch = p_epoch AND t.lease_expires_at IS NOT NULL
        FOR UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lease_lost', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    IF NOT flow_step_awaits(p_run_id, p_step_id, p_attempt) THEN
        RETURN QUERY SELECT 'superseded', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail INTO v_done
      FROM flow_append_outcome(p_run_id, p_step_id, p_task_id, p_event) AS a;
    IF v_done.outcome = 'appended' THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
    RETURN QUERY SELECT v_done.outcome, v_done.head_sequence, v_done.recorded_at, v_done.detail;
END
$$;

-- Appends the event that an attempt ended with, and removes its task, and what it said unless
-- there is another attempt to hear that. The caller holds the locks, and wakes the run.
CREATE FUNCTION flow_append_outcome(p_run_id text, p_step_id text, p_task_id bigint, p_event json)
RETURNS TABLE (outcome text, head_sequence bigint, recorded_at timestamptz, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
BEGIN
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail INTO v_done
      FROM flow_append_many((
               '[{"run_id":' || to_json(p_run_id)::text || ',"events":[' || p_event::text ||
               ']}]')::json) AS a;
    IF v_done.outcome = 'appended' THEN
        DELETE FROM flow_tasks AS t WHERE t.task_id = p_task_id;
        IF flow_json_get_text(p_event, 'type') <> 'step_retrying' THEN
            DELETE FROM flow_step_heartbeats AS h
                  WHERE h.run_id = p_run_id AND h.step_id = p_step_id;
        END IF;
    END IF;
    RETURN QUERY SELECT v_done.outcome, v_done.head_sequence, v_done.recorded_at, v_done.detail;
END
$$;

-- Which attempts that are at work nobody waits for any more: p_steps is a JSON array of {"task_id",
-- "run_id", "step_id", "attempt"}; one row each for those whose step was closed, or whose run has
-- ended. SQLSTATEs: WF010.
CREATE FUNCTION flow_superseded_steps(p_steps json) RETURNS TABLE (task_id bigint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_runs text[];
    v_steps text[];
    v_attempts integer[];
BEGIN
    BEGIN
        SELECT array_agg(s.task_id), array_agg(s.run_id), array_agg(s.step_id),
               array_agg(s.attempt)
          INTO v_tasks, v_runs, v_steps, v_attempts
          FROM json_to_recordset(p_steps)
               AS s (task_id bigint, run_id text, step_id text, attempt integer);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_steps',
            'it must be an array of {"task_id", "run_id", "step_id", "attempt"}');
    END;
    RETURN QUERY
    SELECT s.task_id
      FROM unnest(v_tasks, v_runs, v_steps, v_attempts) AS s (task_id, run_id, step_id, attempt)
      LEFT JOIN LATERAL (
            SELECT f.status FROM flow_runs AS f WHERE f.run_id = s.run_id LIMIT 1) AS r ON true
     WHERE r.status IS NULL OR flow_is_terminal(r.status)
        OR NOT flow_step_awaits(s.run_id, s.step_id, s.attempt);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_step(text, bigint, bigint, text, integer, json, boolean)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_outcome(text, text, bigint, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_superseded_steps(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_step(text, bigint, bigint, text, integer, json, boolean)
    IS 'Records how an attempt ended that a worker of another queue carried out.';
COMMENT ON FUNCTION flow_append_outcome(text, text, bigint, json)
    IS 'Appends the event that an attempt of another queue ended with.';
COMMENT ON FUNCTION flow_superseded_steps(json)
    IS 'Which attempts at work nobody waits for any more.';
