-- flow_record_heartbeats: keeps what steps at work say of their progress, all those of a process in
-- one call, for the attempt that follows if this one comes to nothing.
-- Arguments: p_beats, a JSON array of {"run_id", "epoch", "step_id", "attempt", "details"?,
--   "task_id"?}: the fence is that of the task if there is one, else that of the run;
--   details is JSON text; without it the step has its outcome, and its row goes.
-- Returns one row a beat, in order. outcome: recorded; busy, when somebody works on the run right
--   now: say it again; lost, when the lease is another's or the run has ended.
-- Locks, in order: run locks, only when free, for it never waits for a run; rows of this table.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_record_heartbeats(p_beats json)
RETURNS TABLE (run_id text, step_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_tasks bigint[];
    v_steps text[];
    v_attempts integer[];
    v_details text[];
    v_outcomes text[];
    v_free text[];
BEGIN
    BEGIN
        SELECT array_agg(b.run_id), array_agg(b.epoch), array_agg(b.task_id),
               array_agg(b.step_id), array_agg(b.attempt), array_agg(b.details::json::text)
          INTO v_runs, v_epochs, v_tasks, v_steps, v_attempts, v_details
          FROM json_to_recordset(p_beats) AS b (
                   run_id text, epoch bigint, step_id text, attempt integer, details text,
                   task_id bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_beats',
            'it must be an array of {"run_id", "epoch", "step_id", "attempt", "details"}');
    END;
    v_free := flow_try_lock_runs(ARRAY(SELECT DISTINCT u.run_id FROM unnest(v_runs) AS u (run_id)));
    SELECT array_agg(CASE WHEN b.run_id <> ALL (v_free) THEN 'busy'
                          WHEN coalesce(t.epoch, r.lease_epoch) IS DISTINCT FROM b.epoch THEN 'lost'
                          WHEN b.task_id IS NOT NULL AND t.epoch IS NULL THEN 'lost'
                          WHEN b.details IS NOT NULL AND flow_is_terminal(r.status) THEN 'lost'
                          ELSE 'recorded' END ORDER BY b.n)
      INTO v_outcomes
      FROM unnest(v_runs, v_epochs, v_tasks, v_details) WITH ORDINALITY
           AS b (run_id, epoch, task_id, details, n)
      LEFT JOIN LATERAL (
            SELECT f.lease_epoch, f.status FROM flow_runs AS f
             WHERE f.run_id = b.run_id LIMIT 1) AS r ON true
      LEFT JOIN LATERAL (
            SELECT k.epoch FROM flow_tasks AS k
             WHERE k.task_id = b.task_id AND k.lease_expires_at IS NOT NULL LIMIT 1) AS t ON true;
    DELETE FROM flow_step_heartbeats AS h
          USING unnest(v_runs, v_steps, v_details, v_outcomes)
                AS b (run_id, step_id, details, outcome)
          WHERE h.run_id = b.run_id AND h.step_id = b.step_id
            AND b.details IS NULL AND b.outcome = 'recorded';
    INSERT INTO flow_step_heartbeats AS h (run_id, step_id, attempt, beat_at, details)
    SELECT DISTINCT ON (b.run_id, b.step_id)
           b.run_id, b.step_id, b.attempt, flow_now(), b.details::json
      FROM unnest(v_runs, v_steps, v_attempts, v_details, v_outcomes) WITH ORDINALITY
           AS b (run_id, step_id, attempt, details, outcome, n)
     WHERE b.details IS NOT NULL AND b.outcome = 'recorded'
     ORDER BY b.run_id, b.step_id, b.n DESC
        ON CONFLICT (run_id, step_id) DO UPDATE
       SET attempt = excluded.attempt, beat_at = excluded.beat_at, details = excluded.details;
    RETURN QUERY
    SELECT b.run_id, b.step_id, b.outcome
      FROM unnest(v_runs, v_steps, v_outcomes) WITH ORDINALITY AS b (run_id, step_id, outcome, n)
     ORDER BY b.n;
END
$$;

-- What the latest heartbeat of a step said, no row if there was none.
CREATE FUNCTION flow_step_heartbeat(p_run_id text, p_step_id text)
RETURNS TABLE (attempt integer, beat_at timestamptz, details json)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
    SELECT h.attempt, h.beat_at, h.details
      FROM flow_step_heartbeats AS h
     WHERE h.run_id = p_run_id AND h.step_id = p_step_id
$$;

REVOKE EXECUTE ON FUNCTION flow_record_heartbeats(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_step_heartbeat(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_heartbeats(json) IS 'Keeps what steps at work say.';
COMMENT ON FUNCTION flow_step_heartbeat(text, text) IS 'What the latest heartbeat of a step said.';
