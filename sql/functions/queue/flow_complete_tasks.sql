-- flow_complete_tasks: says how tasks ended; for all kinds but drive_run, which is released.
-- Arguments: p_done, a JSON array of {"task_id", "epoch", "ok", "error"?: text without tokens and
--   payloads, "retry_delay"?: interval, "dead"?: true for a failure that no retry can cure}.
-- Returns one row an element, in order, with its outcome:
--   done        it is removed, with a line in flow_finished_tasks when it is to be kept
--   again       its payload was replaced meanwhile: it can be claimed once more
--   retry       it failed and can be claimed again after its delay: the one given, or its own
--               doubled with each failure, at most an hour
--   dead        it failed once too often and is a dead letter
--   lease_lost  somebody else holds it, or nobody: nothing was changed
--   gone        it is not there (any more): completed before, or removed
-- Lost workers are no failures: those of them are counted apart.
-- Locks: queue rows, by task. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_complete_tasks(p_done json)
RETURNS TABLE (task_id bigint, outcome text, dead_letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_done record;
    v_task record;
    v_failures integer;
BEGIN
    BEGIN
        PERFORM FROM json_to_recordset(p_done) AS d (task_id bigint, epoch bigint, ok boolean,
            error text, retry_delay interval, dead boolean);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_done', 'it must be an array of {"task_id", "epoch", "ok"}');
    END;
    -- in one order, whatever order they come in
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id IN (SELECT d.task_id FROM json_to_recordset(p_done) AS d (task_id bigint))
        AND t.kind <> 'drive_run'
      ORDER BY t.task_id
        FOR UPDATE;
    FOR v_done IN
        SELECT d.task_id, d.epoch, coalesce(d.ok, false) AS ok, left(d.error, 2000) AS error,
               d.retry_delay, coalesce(d.dead, false) AS dead
          FROM json_to_recordset(p_done) AS d (task_id bigint, epoch bigint, ok boolean,
               error text, retry_delay interval, dead boolean)
    LOOP
        task_id := v_done.task_id;
        dead_letter_id := NULL;
        SELECT t.epoch, t.lease_owner, t.wakes, t.attempts, t.crashes, t.max_attempts,
               t.retry_delay, t.keep, t.queue
          INTO v_task
          FROM flow_tasks AS t WHERE t.task_id = v_done.task_id AND t.kind <> 'drive_run';
        v_failures := greatest(v_task.attempts - v_task.crashes, 1);
        IF NOT FOUND THEN
            outcome := 'gone';
        ELSIF v_task.lease_owner IS NULL OR v_task.epoch IS DISTINCT FROM v_done.epoch THEN
            outcome := 'lease_lost';
        ELSIF v_done.ok AND v_task.wakes > 1 THEN
            outcome := 'again';
            UPDATE flow_tasks AS t
               SET lease_owner = NULL, lease_expires_at = NULL, available_at = v_now,
                   attempts = 0, crashes = 0, last_error = NULL
             WHERE t.task_id = v_done.task_id;
        ELSIF v_done.ok THEN
            outcome := 'done';
            INSERT INTO flow_finished_tasks (task_id, queue, kind, run_id, attempts, crashes,
                enqueued_at, finished_at)
            SELECT t.task_id, t.queue, t.kind, t.run_id, t.attempts, t.crashes, t.enqueued_at, v_now
              FROM flow_tasks AS t WHERE t.task_id = v_done.task_id AND t.keep;
            DELETE FROM flow_tasks AS t WHERE t.task_id = v_done.task_id;
        ELSIF v_done.dead OR v_failures >= coalesce(v_task.max_attempts, 1) THEN
            outcome := 'dead';
            UPDATE flow_tasks AS t SET last_error = v_done.error
             WHERE t.task_id = v_done.task_id;
            SELECT b.dead_letter_id INTO dead_letter_id
              FROM flow_bury_tasks(ARRAY[v_done.task_id],
                                   format('failed %s times', v_failures)) AS b;
        ELSE
            outcome := 'retry';
            UPDATE flow_tasks AS t
               SET lease_owner = NULL, lease_expires_at = NULL, last_error = v_done.error,
                   available_at = v_now + greatest('0', CASE
                       WHEN v_done.retry_delay IS NOT NULL
                           THEN least(v_done.retry_delay, interval '1000 years')
                       -- doubled, a delay of years would lead out of the calendar
                       WHEN v_task.retry_delay >= '1 hour' THEN v_task.retry_delay
                       ELSE least(interval '1 hour', coalesce(v_task.retry_delay, '0')
                                                     * power(2, least(v_failures - 1, 30)))
                   END)
             WHERE t.task_id = v_done.task_id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_complete_tasks(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_complete_tasks(json) IS 'Says how tasks ended.';
