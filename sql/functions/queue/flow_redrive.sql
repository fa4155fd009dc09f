-- flow_redrive: puts dead letters back into their queues, with all attempts before them.
-- Arguments: p_dead_letter_id, one letter; or p_queue, at most p_limit letters of a queue, the
--   oldest first. One of the two.
-- Returns one row a letter: dead_letter_id, run_id, and redriven. A letter that is not there (any
--   more) gives no row, so it may be repeated. Not redriven, and kept: the letter of a task by
--   token whose hook is not known. The run of a drive task is woken, unless it has ended.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_redrive(
    p_dead_letter_id bigint DEFAULT NULL, p_queue text DEFAULT NULL, p_limit integer DEFAULT 1000
) RETURNS TABLE (dead_letter_id bigint, run_id text, redriven boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_letter record;
    v_ids bigint[];
    v_runs text[];
    v_queues text[] := '{}';
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF (p_dead_letter_id IS NULL) = (p_queue IS NULL) THEN
        PERFORM flow_raise_argument('p_queue', 'name one dead letter or one queue');
    END IF;
    v_ids := CASE WHEN p_queue IS NULL THEN ARRAY[p_dead_letter_id] ELSE ARRAY(
        SELECT d.dead_letter_id FROM flow_dead_letters AS d
         WHERE d.queue = p_queue ORDER BY d.dead_letter_id LIMIT p_limit) END;
    PERFORM flow_lock_runs(ARRAY(
        SELECT d.run_id FROM flow_dead_letters AS d
         WHERE d.dead_letter_id = ANY (v_ids) AND d.kind = 'drive_run'));
    v_now := flow_now();
    v_runs := '{}';
    FOR v_letter IN
        SELECT d.dead_letter_id, d.queue, d.kind, d.run_id, d.payload, d.policy,
               d.kind = 'drive_run' AS drives,
               flow_is_token_kind(d.kind) AND d.run_id IS NULL AS is_lost
          FROM flow_dead_letters AS d
         WHERE d.dead_letter_id = ANY (v_ids)
         ORDER BY d.dead_letter_id
           FOR UPDATE
    LOOP
        dead_letter_id := v_letter.dead_letter_id;
        run_id := v_letter.run_id;
        redriven := NOT v_letter.is_lost;
        IF v_letter.drives THEN
            UPDATE flow_runs AS r SET dead_letter_id = NULL, blocked_reason = NULL
             WHERE r.run_id = v_letter.run_id AND r.dead_letter_id = v_letter.dead_letter_id;
            v_runs := v_runs || v_letter.run_id;
        ELSIF redriven THEN
            v_queues := v_queues || v_letter.queue;
            INSERT INTO flow_tasks (queue, run_id, kind, payload, priority, available_at,
                enqueued_at, runtime_build, workflow_name, concurrency_key, max_attempts,
                max_stalled, retry_delay, timeout, keep)
            SELECT v_letter.queue, v_letter.run_id, replace(v_letter.kind, '_by_token', ''),
                   v_letter.payload, coalesce(p.priority, 0), v_now, v_now,
                   coalesce(r.runtime_build, ''),
                   CASE WHEN v_letter.kind = 'run_step'
                        THEN 'step:' || (v_letter.payload ->> 'step_name')
                        ELSE r.workflow_name END, p.concurrency_key,
                   p.max_attempts, p.max_stalled, p.retry_delay, p.timeout, coalesce(p.keep, false)
              FROM jsonb_to_record(v_letter.policy) AS p (priority smallint, concurrency_key text,
                   max_attempts integer, max_stalled integer, retry_delay interval,
                   timeout interval, keep boolean)
              LEFT JOIN LATERAL (
                    SELECT f.runtime_build, f.workflow_name FROM flow_runs AS f
                     WHERE f.run_id = v_letter.run_id LIMIT 1) AS r ON true;
        END IF;
        IF redriven THEN
            DELETE FROM flow_dead_letters AS d WHERE d.dead_letter_id = v_letter.dead_letter_id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM flow_enqueue_drives(ARRAY(
        SELECT r.run_id FROM flow_runs AS r
         WHERE r.run_id = ANY (v_runs) AND NOT flow_is_terminal(r.status)));
    PERFORM flow_notify_idle(v_queues);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_redrive(bigint, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_redrive(bigint, text, integer)
    IS 'Puts dead letters back into their queues.';
