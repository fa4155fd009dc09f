-- flow_bury_tasks: turns tasks into dead letters; the one place where tasks give up.
-- Arguments: p_task_ids, their rows locked by the caller, and the runs of drive tasks too;
--   p_reason, or null for tasks whose lease expired once too often.
-- The run of a drive task is blocked with the reason, nothing wakes it until the letter is
--   redriven, and its fence is raised: whoever comes back late is refused. A run that has ended
--   needs neither.
--   The letter of a task by token names run and hook, when its hook is active, and never the token.
-- Locks: rows; the queue rows and run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_bury_tasks(p_task_ids bigint[], p_reason text)
RETURNS TABLE (
    task_id bigint, dead_letter_id bigint, run_id text, queue text, crashes integer
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM flow_tasks AS t
              WHERE t.task_id = ANY (p_task_ids)
        RETURNING t.task_id, t.queue, t.kind, t.run_id, t.payload, t.priority, t.attempts,
                  t.crashes + CASE WHEN p_reason IS NULL THEN (t.lease_owner IS NOT NULL)::integer
                                   ELSE 0 END AS crashes,
                  t.last_error, t.enqueued_at, t.concurrency_key, t.max_attempts, t.max_stalled,
                  t.retry_delay, t.timeout, t.keep
    ), letters AS (
        INSERT INTO flow_dead_letters AS d (task_id, queue, kind, run_id, payload, reason,
            last_error, attempts, crashes, enqueued_at, dead_at, policy)
        SELECT g.task_id, g.queue, g.kind, coalesce(g.run_id, h.run_id),
               CASE WHEN flow_is_token_kind(g.kind)
                    THEN flow_redacted_payload(g.payload, h.hook_id) ELSE g.payload END,
               coalesce(p_reason, format('lost %s workers while they worked on it', g.crashes)),
               g.last_error, g.attempts, g.crashes, g.enqueued_at, v_now,
               jsonb_strip_nulls(jsonb_build_object('priority', g.priority,
                   'concurrency_key', g.concurrency_key, 'max_attempts', g.max_attempts,
                   'max_stalled', g.max_stalled, 'retry_delay', g.retry_delay,
                   'timeout', g.timeout, 'keep', g.keep))
          FROM gone AS g
          LEFT JOIN LATERAL (
                SELECT f.run_id, f.hook_id FROM flow_active_hooks AS f
                 WHERE flow_is_token_kind(g.kind)
                   AND f.token = flow_json_get_text(g.payload, 'token')
                 LIMIT 1) AS h ON true
         WHERE g.kind <> 'drive_run'
            OR NOT flow_is_terminal((SELECT r.status FROM flow_runs AS r
                                      WHERE r.run_id = g.run_id))
        RETURNING d.task_id, d.dead_letter_id, d.kind, d.run_id, d.queue, d.crashes, d.reason
    ), blocked AS (
        UPDATE flow_runs AS r
           SET blocked_reason = l.reason, dead_letter_id = l.dead_letter_id,
               lease_epoch = r.lease_epoch + 1
          FROM letters AS l
         WHERE l.kind = 'drive_run' AND r.run_id = l.run_id
        RETURNING r.run_id
    )
    SELECT l.task_id, l.dead_letter_id, l.run_id, l.queue, l.crashes FROM letters AS l;
END
$$;

-- The payload of a task by token with the hook in place of the token.
CREATE FUNCTION flow_redacted_payload(p_payload json, p_hook_id text) RETURNS json
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT ('{"hook_id":' || coalesce(to_json(p_hook_id)::text, 'null')
            || coalesce(',"payload":' || flow_json_get(p_payload, 'payload')::text, '')
            || '}')::json
$$;

REVOKE EXECUTE ON FUNCTION flow_bury_tasks(bigint[], text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_redacted_payload(json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_bury_tasks(bigint[], text) IS 'Turns tasks into dead letters.';
COMMENT ON FUNCTION flow_redacted_payload(json, text)
    IS 'The payload of a task by token with the hook in place of the token.';
