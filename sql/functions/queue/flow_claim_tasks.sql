-- flow_claim_tasks: takes leases of tasks that can be worked on.
--   flow_claim_tasks(queue, ...)    of one queue
--   flow_claim_tasks(queues, ...)   of several, looked at in an order that changes from call to
--   call
-- Arguments: p_queue or p_queues; p_limit, 1 to 1000, never exceeded; p_owner, who claims, shown to
--   operators; p_lease, how long the lease lasts without a heartbeat. What is taken: p_builds,
--   builds of pinned runs (null: any); p_accept_unpinned, runs of no build; p_workflows (null:
--   any); p_max_crashes, a task whose lease expired more often becomes a dead letter and its run is
--   blocked (null: never); p_kinds (null: all kinds).
-- A task can be claimed when it is available and nobody holds it, or its lease has expired, and its
--   queue is neither paused nor at its limits. Smaller priority first, then the oldest. Each claim
--   raises the fence: the run's lease epoch for drive_run, the task's for other kinds.
--   previous_owner is who held the lease that expired, null where nobody did.
-- Locks: rows of queues, queue rows and run locks, all only when free, so that a claim never waits;
--   then rows. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_claim_tasks(
    p_queues text[], p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3,
    p_kinds text[] DEFAULT '{drive_run}'
) RETURNS TABLE (
    task_id bigint, run_id text, kind text, payload json, epoch bigint, wakes bigint,
    attempts integer, head_sequence bigint, db_now timestamptz, crashes integer, queue text,
    workflow_name text, runtime_build text, timeout interval, max_attempts integer, last_error text,
    previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_filter flow_claim_filter;
    v_runs text[] := '{}'; v_others bigint[] := '{}';
    v_queue text;
    v_more_runs text[];
    v_more_others bigint[];
    v_crashed boolean := false;
    v_more_crashed boolean;
    v_lost bigint[]; v_losers text[];
    v_turn integer := floor(random() * coalesce(cardinality(p_queues), 0));
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_check_lease(p_owner, p_lease);
    v_filter := ROW(p_builds, coalesce(p_accept_unpinned, true), p_workflows, p_kinds,
                    p_max_crashes, flow_claim_digest(p_workflows, p_kinds))::flow_claim_filter;
    FOREACH v_queue IN ARRAY coalesce(p_queues[v_turn + 1:] || p_queues[:v_turn], '{}') LOOP
        SELECT coalesce(array_agg(c.run_id) FILTER (WHERE c.kind = 'drive_run'), '{}'),
               coalesce(array_agg(c.task_id) FILTER (WHERE c.kind <> 'drive_run'), '{}'),
               coalesce(bool_or(c.crashed), false)
          INTO v_more_runs, v_more_others, v_more_crashed
          FROM flow_claim_pick(v_queue, p_limit - cardinality(v_runs) - cardinality(v_others),
                               v_now, v_filter) AS c;
        v_runs := v_runs || v_more_runs;
        v_others := v_others || v_more_others;
        v_crashed := v_crashed OR v_more_crashed;
        EXIT WHEN cardinality(v_runs) + cardinality(v_others) >= p_limit;
    END LOOP;

    IF v_crashed THEN
        SELECT h.tasks, h.owners INTO v_lost, v_losers
          FROM flow_lease_holders(v_runs, v_others) AS h;
    END IF;
    IF cardinality(v_runs) > 0 THEN
        -- two statements: joined in one they are planned, while the tables are small, to compare
        -- every task with every run
        UPDATE flow_runs AS r
           SET lease_epoch = r.lease_epoch + 1
         WHERE r.run_id = ANY (v_runs);
        RETURN QUERY
        WITH leased AS (
            UPDATE flow_tasks AS t
               SET lease_owner = p_owner, lease_expires_at = v_now + p_lease,
                   epoch = (SELECT r.lease_epoch FROM flow_runs AS r WHERE r.run_id = t.run_id),
                   attempts = t.attempts + 1, missing_step = NULL,
                   crashes = t.crashes + (t.lease_owner IS NOT NULL)::integer
             WHERE t.run_id = ANY (v_runs) AND t.kind = 'drive_run'
            RETURNING t.task_id, t.run_id, t.kind, t.payload, t.epoch, t.wakes, t.attempts,
                      t.priority, t.available_at, t.crashes, t.queue, t.workflow_name,
                      t.runtime_build, t.timeout, t.max_attempts, t.last_error
        )
        SELECT l.task_id, l.run_id, l.kind, l.payload, l.epoch, l.wakes, l.attempts,
               r.head_sequence, v_now, l.crashes, l.queue, l.workflow_name,
               nullif(l.runtime_build, ''), l.timeout, l.max_attempts, l.last_error,
               v_losers[array_position(v_lost, l.task_id)]
          FROM leased AS l
         CROSS JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                              WHERE f.run_id = l.run_id LIMIT 1) AS r
         ORDER BY l.priority, l.available_at, l.task_id;
    END IF;
    IF cardinality(v_others) > 0 THEN
        RETURN QUERY
        WITH leased AS (
            UPDATE flow_tasks AS t
               SET lease_owner = p_owner, lease_expires_at = v_now + p_lease,
                   epoch = coalesce(t.epoch, 0) + 1, wakes = 1, attempts = t.attempts + 1,
                   crashes = t.crashes + (t.lease_owner IS NOT NULL)::integer
             WHERE t.task_id = ANY (v_others)
            RETURNING t.task_id, t.run_id, t.kind, t.payload, t.epoch, t.wakes, t.attempts,
                      t.priority, t.available_at, t.crashes, t.queue, t.workflow_name,
                      t.runtime_build, t.timeout, t.max_attempts, t.last_error
        )
        SELECT l.task_id, l.run_id, l.kind, l.payload, l.epoch, l.wakes, l.attempts,
               coalesce(r.head_sequence, 0), v_now, l.crashes, l.queue, l.workflow_name,
               nullif(l.runtime_build, ''), l.timeout, l.max_attempts, l.last_error,
               v_losers[array_position(v_lost, l.task_id)]
          FROM leased AS l
          LEFT JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                              WHERE f.run_id = l.run_id LIMIT 1) AS r ON true
         ORDER BY l.priority, l.available_at, l.task_id;
    END IF;
END
$$;

CREATE FUNCTION flow_claim_tasks(
    p_queue text, p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3,
    p_kinds text[] DEFAULT '{drive_run}'
) RETURNS TABLE (
    task_id bigint, run_id text, kind text, payload json, epoch bigint, wakes bigint,
    attempts integer, head_sequence bigint, db_now timestamptz, crashes integer, queue text,
    workflow_name text, runtime_build text, timeout interval, max_attempts integer, last_error text,
    previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT c.task_id, c.run_id, c.kind, c.payload, c.epoch, c.wakes, c.attempts, c.head_sequence,
           c.db_now, c.crashes, c.queue, c.workflow_name, c.runtime_build, c.timeout,
           c.max_attempts, c.last_error, c.previous_owner
      FROM flow_claim_tasks(ARRAY[p_queue], p_limit, p_owner, p_lease, p_builds,
                            p_accept_unpinned, p_workflows, p_max_crashes, p_kinds) AS c;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_tasks(text[], integer, text, interval, text[], boolean,
    text[], integer, text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_tasks(text, integer, text, interval, text[], boolean,
    text[], integer, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_tasks(text[], integer, text, interval, text[], boolean, text[],
    integer, text[]) IS 'Takes leases of tasks of several queues.';
COMMENT ON FUNCTION flow_claim_tasks(text, integer, text, interval, text[], boolean, text[],
    integer, text[]) IS 'Takes leases of tasks of one queue.';
