-- flow_requeue_expired: takes tasks from holders whose lease has expired, without claiming them.
-- A claim does the same for what it takes; this is for queues that nobody claims from, and to see
--   what was lost. Each is counted as a crash; one that crashed more often than p_max_crashes (or
--   its own limit) becomes a dead letter.
-- Arguments: p_limit, 1 to 1000; p_max_crashes, null for no limit; p_queue, null for all.
-- Returns one row a task: its crashes so far, and the dead letter that it became, if it did.
-- Locks: queue rows and run locks, only when free, so that it never waits; then rows.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_requeue_expired(
    p_limit integer DEFAULT 1000, p_max_crashes integer DEFAULT 3, p_queue text DEFAULT NULL
) RETURNS TABLE (task_id bigint, run_id text, queue text, crashes integer, dead_letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_queue text;
    v_found flow_claim_candidate[];
    v_locked text[];
    v_left integer := p_limit;
    v_queues text[];
BEGIN
    PERFORM flow_check_limit(p_limit);
    v_queues := CASE WHEN p_queue IS NOT NULL THEN ARRAY[p_queue]
                     ELSE ARRAY(SELECT DISTINCT l.queue FROM flow_lanes AS l) END;
    FOREACH v_queue IN ARRAY v_queues LOOP
        EXIT WHEN v_left <= 0;
        WITH expired AS MATERIALIZED (
            SELECT t.task_id, t.run_id, t.kind, t.crashes + 1
                       > coalesce(t.max_stalled, p_max_crashes, 2147483647) AS is_dead
              FROM flow_tasks AS t
             WHERE t.queue = v_queue AND t.lease_owner IS NOT NULL AND t.lease_expires_at <= v_now
               AND t.lease_expires_at >= coalesce((SELECT m.low_water FROM flow_marks AS m
                                                    WHERE m.name = v_queue AND m.takes = ''),
                                               '-infinity')
             ORDER BY t.lease_expires_at, t.task_id
             LIMIT v_left
               FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(ROW(e.task_id, e.run_id, e.kind, 0, v_now, NULL, true,
                             e.is_dead)::flow_claim_candidate)
          INTO v_found FROM expired AS e;
        CONTINUE WHEN v_found IS NULL;
        v_locked := flow_try_lock_runs(ARRAY(
            SELECT f.run_id FROM unnest(v_found) AS f WHERE f.kind = 'drive_run'));
        v_found := ARRAY(SELECT f FROM unnest(v_found) AS f
                          WHERE f.kind <> 'drive_run' OR f.run_id = ANY (v_locked));
        v_left := v_left - cardinality(v_found);
        RETURN QUERY
        SELECT b.task_id, b.run_id, b.queue, b.crashes, b.dead_letter_id
          FROM flow_bury_tasks(ARRAY(SELECT f.task_id FROM unnest(v_found) AS f WHERE f.is_dead),
                               NULL) AS b;
        RETURN QUERY
        UPDATE flow_tasks AS t
           SET lease_owner = NULL, lease_expires_at = NULL, available_at = v_now,
               crashes = t.crashes + 1
         WHERE t.task_id = ANY (ARRAY(SELECT f.task_id FROM unnest(v_found) AS f
                                       WHERE NOT f.is_dead))
        RETURNING t.task_id, t.run_id, t.queue, t.crashes, NULL::bigint;
        PERFORM flow_notify_idle(ARRAY[v_queue]);
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_requeue_expired(integer, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_requeue_expired(integer, integer, text)
    IS 'Takes tasks from holders whose lease has expired.';
