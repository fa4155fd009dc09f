-- flow_claim_tasks: takes the leases of runs that have work to do.
-- Arguments: p_queue; p_limit, 1 to 1000, never exceeded; p_owner, who claims, shown to operators;
--   p_lease, how long the lease lasts without a heartbeat.
-- A task can be claimed when it is available and nobody holds it, or its lease has expired. Smaller
--   priority first, then the oldest. Each claim raises the run's lease epoch, the fence that
--   appends are checked against, and counts one attempt.
-- Locks: queue rows and run locks, both only when free, so that a claim never waits; then rows.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_claim_tasks(p_queue text, p_limit integer, p_owner text, p_lease interval)
RETURNS TABLE (
    task_id bigint, run_id text, kind text, payload json, epoch bigint, wakes bigint,
    attempts integer, head_sequence bigint, db_now timestamptz
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_seen bigint[] := '{}';
    v_runs text[] := '{}';
    v_tasks bigint[];
    v_candidates text[];
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_check_lease(p_owner, p_lease);
    -- a task whose run is busy is passed over, so look again until there is enough or nothing left
    LOOP
        SELECT array_agg(c.task_id), array_agg(c.run_id) INTO v_tasks, v_candidates
          FROM flow_claim_candidates(p_queue, p_limit - cardinality(v_runs), v_now, v_seen) AS c;
        EXIT WHEN v_tasks IS NULL;
        v_seen := v_seen || v_tasks;
        v_runs := v_runs || flow_try_lock_runs(v_candidates);
        EXIT WHEN cardinality(v_runs) >= p_limit;
    END LOOP;
    IF cardinality(v_runs) = 0 THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH fenced AS (
        UPDATE flow_runs AS r
           SET lease_epoch = r.lease_epoch + 1
         WHERE r.run_id = ANY (v_runs)
        RETURNING r.run_id, r.lease_epoch, r.head_sequence
    ), leased AS (
        UPDATE flow_tasks AS t
           SET lease_owner = p_owner, lease_expires_at = v_now + p_lease, epoch = f.lease_epoch,
               attempts = t.attempts + 1
          FROM fenced AS f
         WHERE t.run_id = f.run_id AND t.kind = 'drive_run'
        RETURNING t.task_id, t.run_id, t.kind, t.payload, t.epoch, t.wakes, t.attempts,
                  f.head_sequence, t.priority, t.available_at
    )
    SELECT l.task_id, l.run_id, l.kind, l.payload, l.epoch, l.wakes, l.attempts, l.head_sequence,
           v_now
      FROM leased AS l
     ORDER BY l.priority, l.available_at, l.task_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_tasks(text, integer, text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_tasks(text, integer, text, interval)
    IS 'Takes the leases of runs that have work to do.';
