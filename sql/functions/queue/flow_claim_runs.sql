-- flow_claim_runs: takes leases of runs of some queues, and reads the short histories, those of new
--   runs first of all, in the same call.
-- Arguments: p_queues to p_max_crashes as in flow_claim_tasks; p_events, the longest history that
--   is read: others are left to flow_load_runs; p_due, make work of what is due first, as
--   flow_enqueue_due does: a worker with nothing to do looks at both in one transaction.
-- Returns one row a run, as flow_claim_tasks orders them; db_now as events write times; status and
--   events as flow_load_runs returns them, both null for a longer history;
--   previous_owner is who held the lease that expired, null where nobody did.
-- The histories are read by a statement of its own, under the run locks of the claim: each ends at
--   the head that was claimed. If they cannot be read, the claim stands, and all of them are null:
--   one broken row must not keep its neighbours from being driven.
-- Locks and SQLSTATEs: as flow_claim_tasks, and before them those of flow_enqueue_due.
-- Callers: worker.
CREATE FUNCTION flow_claim_runs(
    p_queues text[], p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3, p_events bigint DEFAULT 8,
    p_due boolean DEFAULT false
) RETURNS TABLE (
    run_id text, epoch bigint, wakes bigint, head_sequence bigint, db_now text, task_id bigint,
    attempts integer, status text, events text, previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_mergejoin = off SET jit = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_wakes bigint[];
    v_heads bigint[];
    v_tasks bigint[];
    v_attempts integer[];
    v_owners text[];
    v_short text[];
    v_read text[];
    v_statuses text[];
    v_events text[];
    v_now text;
BEGIN
    IF p_due THEN
        PERFORM FROM flow_enqueue_due();
    END IF;
    SELECT array_agg(c.run_id), array_agg(c.epoch), array_agg(c.wakes), array_agg(c.head_sequence),
           array_agg(c.task_id), array_agg(c.attempts), array_agg(c.previous_owner),
           array_agg(c.run_id) FILTER (WHERE c.head_sequence <= p_events),
           flow_time_text(min(c.db_now))
      INTO v_runs, v_epochs, v_wakes, v_heads, v_tasks, v_attempts, v_owners, v_short,
           v_now
      FROM flow_claim_tasks(p_queues, p_limit, p_owner, p_lease, p_builds, p_accept_unpinned,
                            p_workflows, p_max_crashes) AS c;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    IF v_short IS NOT NULL THEN
        BEGIN
            SELECT array_agg(l.run_id), array_agg(l.status), array_agg(l.events)
              INTO v_read, v_statuses, v_events
              FROM flow_load_runs(v_short) AS l;
        EXCEPTION WHEN others THEN
            v_read := NULL;
        END;
    END IF;
    RETURN QUERY
    SELECT u.run_id, u.epoch, u.wakes, u.head_sequence, v_now, u.task_id, u.attempts, l.status,
           l.events, u.previous_owner
      FROM unnest(v_runs, v_epochs, v_wakes, v_heads, v_tasks, v_attempts, v_owners)
           WITH ORDINALITY AS u (run_id, epoch, wakes, head_sequence, task_id, attempts,
                                 previous_owner, place)
      LEFT JOIN unnest(v_read, v_statuses, v_events) AS l (run_id, status, events)
             ON l.run_id = u.run_id
     ORDER BY u.place;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_runs(text[], integer, text, interval, text[], boolean, text[],
    integer, bigint, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_runs(text[], integer, text, interval, text[], boolean, text[],
    integer, bigint, boolean)
    IS 'Takes leases of runs of some queues and reads the short histories.';
