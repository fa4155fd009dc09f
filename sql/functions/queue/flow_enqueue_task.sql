-- flow_enqueue_task: makes a task that carries out one verb later, or drives a run.
-- Arguments: p_kind and p_payload:
--   drive_run; resume_scheduled_run;
--   resume_wait {"wait_id"}; resume_hook {"hook_id", "payload"}; dispose_hook {"hook_id"}: with
--   p_run_id; resume_hook_by_token {"token", "payload"}; dispose_hook_by_token {"token"};
--   resume_due_waits; resume_due_retries: without p_run_id.
--   p_queue; p_priority, smaller first; p_delay until it can be claimed. p_dedupe_mode: off;
--   until_terminal: not made while one for the same target is open; until_terminal_or_ttl: or made
--   within p_dedupe_ttl; keep_latest: its payload replaces that of the open one, which is carried
--   out once more when it is at work. p_max_attempts, failures until it is a dead letter;
--   p_retry_delay, doubled with each failure; p_timeout of one attempt; p_concurrency_key;
--   p_max_stalled, crashes until it is a dead letter (null: what the claim says); p_keep, a line in
--   flow_finished_tasks.
-- Returns task_id, and enqueued: false when an open task took it in. drive_run has one task a run
--   whatever is said, as flow_wake_run; it has no payload and no other options.
-- Locks: for drive_run as flow_wake_run; else the queue row of an open task of the same target.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_enqueue_task(
    p_kind text, p_payload json DEFAULT NULL, p_queue text DEFAULT 'default',
    p_run_id text DEFAULT NULL, p_priority smallint DEFAULT 0::smallint,
    p_delay interval DEFAULT '0', p_dedupe_mode text DEFAULT 'off',
    p_dedupe_ttl interval DEFAULT NULL, p_max_attempts integer DEFAULT 1,
    p_retry_delay interval DEFAULT NULL, p_timeout interval DEFAULT NULL,
    p_concurrency_key text DEFAULT NULL, p_max_stalled integer DEFAULT NULL,
    p_keep boolean DEFAULT false
) RETURNS TABLE (task_id bigint, enqueued boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_key text;
    v_run record;
BEGIN
    PERFORM flow_check_task(p_kind, p_payload, p_queue, p_run_id, p_dedupe_mode, p_dedupe_ttl,
                            p_max_attempts, p_retry_delay, p_timeout, p_max_stalled);
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    IF p_kind = 'drive_run' THEN
        PERFORM flow_wake_run(p_run_id);
        RETURN QUERY
        SELECT t.task_id, t.wakes = 1 AND t.lease_owner IS NULL
          FROM flow_tasks AS t WHERE t.run_id = p_run_id AND t.kind = 'drive_run';
        RETURN;
    END IF;
    SELECT r.runtime_build, r.workflow_name INTO v_run
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND AND p_run_id IS NOT NULL THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
    v_now := flow_now();
    IF p_dedupe_mode <> 'off' THEN
        v_key := flow_dedupe_key(p_kind, p_run_id, p_payload);
        -- one whose time is over no longer stands in the way
        UPDATE flow_tasks AS t SET dedupe_key = NULL
         WHERE t.dedupe_key = v_key AND t.dedupe_until <= v_now;
    END IF;
    RETURN QUERY
    INSERT INTO flow_tasks AS t (queue, run_id, kind, payload, priority, available_at, enqueued_at,
        runtime_build, workflow_name, concurrency_key, dedupe_key, dedupe_until, max_attempts,
        max_stalled, retry_delay, timeout, keep)
    VALUES (p_queue, p_run_id, p_kind, p_payload, coalesce(p_priority, 0),
        v_now + greatest(coalesce(p_delay, '0'), '0'), v_now, coalesce(v_run.runtime_build, ''),
        v_run.workflow_name, p_concurrency_key, v_key,
        CASE WHEN p_dedupe_mode = 'until_terminal_or_ttl' THEN v_now + p_dedupe_ttl END,
        p_max_attempts, p_max_stalled, p_retry_delay, p_timeout, coalesce(p_keep, false))
        ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL DO UPDATE
       SET wakes = t.wakes + 1,
           payload = CASE WHEN p_dedupe_mode = 'keep_latest' THEN excluded.payload
                          ELSE t.payload END
     WHERE p_dedupe_mode = 'keep_latest'
    RETURNING t.task_id, t.wakes = 1;
    IF FOUND THEN
        PERFORM flow_notify_idle(ARRAY[p_queue]);
    ELSE
        RETURN QUERY
        SELECT t.task_id, false FROM flow_tasks AS t WHERE t.dedupe_key = v_key;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_task(text, json, text, text, smallint, interval, text,
    interval, integer, interval, interval, text, integer, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_task(text, json, text, text, smallint, interval, text, interval,
    integer, interval, interval, text, integer, boolean)
    IS 'Makes a task that carries out one verb later.';
