-- flow_claim_candidates: locks the rows of the next tasks that can be claimed.
-- Arguments: p_queue, p_limit, p_now; p_seen, tasks that were looked at already.
-- Returns at most p_limit tasks in the order of claiming. Expired leases are found by an index of
--   their own; within one priority the ready ones are read in index order and the scan ends at the
--   first that is not available yet, so neither leased nor delayed tasks cost anything.
-- Locks: queue rows, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_claim_candidates(
    p_queue text, p_limit integer, p_now timestamptz, p_seen bigint[]
) RETURNS TABLE (task_id bigint, run_id text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_tasks flow_claim_candidate[];
    v_more flow_claim_candidate[];
    v_priority integer := -32769;
BEGIN
    WITH expired AS MATERIALIZED (
        SELECT t.task_id, t.run_id, t.priority, t.available_at
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL AND t.lease_expires_at <= p_now
           AND t.kind = 'drive_run' AND t.task_id <> ALL (p_seen)
         ORDER BY t.lease_expires_at, t.task_id
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(ROW(e.task_id, e.run_id, e.priority, e.available_at)::flow_claim_candidate)
      INTO v_tasks FROM expired AS e;
    v_tasks := coalesce(v_tasks, '{}');

    LOOP
        SELECT t.priority INTO v_priority
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority > v_priority
         ORDER BY t.priority
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        WITH ready AS MATERIALIZED (
            SELECT t.task_id, t.run_id, t.priority, t.available_at
              FROM flow_tasks AS t
             WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_priority
               AND t.available_at <= p_now
               AND t.kind = 'drive_run' AND t.task_id <> ALL (p_seen)
             ORDER BY t.available_at, t.task_id
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(ROW(r.task_id, r.run_id, r.priority, r.available_at)::flow_claim_candidate)
          INTO v_more FROM ready AS r;
        v_tasks := v_tasks || coalesce(v_more, '{}');
        EXIT WHEN cardinality(v_tasks) >= p_limit;
    END LOOP;

    RETURN QUERY
    SELECT t.task_id, t.run_id
      FROM unnest(v_tasks) AS t
     ORDER BY t.priority, t.available_at, t.task_id
     LIMIT p_limit;
END
$$;

-- Refuses a lease without an owner or of no length.
CREATE FUNCTION flow_check_lease(p_owner text, p_lease interval) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(btrim(p_owner), '') = '' THEN
        PERFORM flow_raise_argument('p_owner', 'it is blank');
    ELSIF p_lease IS NULL OR p_lease <= interval '0' THEN
        PERFORM flow_raise_argument('p_lease', 'it must be longer than nothing');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_candidates(text, integer, timestamptz, bigint[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_lease(text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_candidates(text, integer, timestamptz, bigint[])
    IS 'Locks the rows of the next tasks that can be claimed.';
COMMENT ON FUNCTION flow_check_lease(text, interval)
    IS 'Refuses a lease without an owner or of no length.';
