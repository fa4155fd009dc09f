-- flow_claim_candidates: locks the rows of the next tasks of a queue that can be claimed.
-- Arguments: p_queue, p_limit, p_now; p_filter, what the claim takes; p_full_keys, concurrency keys
--   that have no slot left; p_seen, tasks that were looked at already.
-- Returns at most p_limit tasks in the order of claiming. Expired leases are found by an index of
--   their own. The ready ones are read lane by lane in index order, from the mark of the lane to
--   the present, so neither leased nor delayed tasks nor those of another build cost anything; nor
--   do, for long, those of workflows and kinds that such claims do not take.
--   is_dead: a lease of the task expired once too often.
-- Locks: queue rows, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_claim_candidates(
    p_queue text, p_limit integer, p_now timestamptz, p_filter flow_claim_filter,
    p_full_keys text[], p_seen bigint[]
) RETURNS SETOF flow_claim_candidate
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks flow_claim_candidate[];
    v_more flow_claim_candidate[];
    v_lane record;
    v_priority smallint;
    v_low timestamptz;
BEGIN
    SELECT m.low_water INTO v_low FROM flow_marks AS m WHERE m.name = p_queue AND m.takes = '';
    WITH expired AS MATERIALIZED (
        SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key,
               t.crashes + 1 > coalesce(t.max_stalled, p_filter.max_crashes, 2147483647) AS is_dead
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
           AND t.lease_expires_at >= coalesce(v_low, '-infinity')
           AND t.lease_expires_at <= p_now
           AND flow_claim_admits(p_filter, t.runtime_build, t.workflow_name, t.kind)
           AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (p_full_keys))
           AND t.task_id <> ALL (p_seen)
         ORDER BY t.lease_expires_at, t.task_id
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(ROW(e.task_id, e.run_id, e.kind, e.priority, e.available_at,
                         e.concurrency_key, true, e.is_dead)::flow_claim_candidate)
      INTO v_tasks FROM expired AS e;
    v_tasks := coalesce(v_tasks, '{}');

    FOR v_lane IN
        SELECT l.priority, l.runtime_build,
               greatest(min(l.low_water) FILTER (WHERE l.takes = ''),
                        min(l.low_water) FILTER (WHERE l.takes <> '')) AS low_water
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes IN ('', p_filter.takes)
           AND CASE WHEN l.runtime_build = '' THEN p_filter.accept_unpinned
                    ELSE p_filter.builds IS NULL OR l.runtime_build = ANY (p_filter.builds) END
         GROUP BY l.priority, l.runtime_build
         ORDER BY l.priority, l.runtime_build
    LOOP
        EXIT WHEN v_lane.priority <> v_priority AND cardinality(v_tasks) >= p_limit;
        v_priority := v_lane.priority;
        WITH ready AS MATERIALIZED (
            SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key
              FROM flow_tasks AS t
             WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_lane.priority
               AND t.runtime_build = v_lane.runtime_build
               AND t.available_at >= v_lane.low_water AND t.available_at <= p_now
               AND flow_claim_admits(p_filter, t.runtime_build, t.workflow_name, t.kind)
               AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (p_full_keys))
               AND t.task_id <> ALL (p_seen)
             ORDER BY t.available_at, t.task_id
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(ROW(r.task_id, r.run_id, r.kind, r.priority, r.available_at,
                             r.concurrency_key, false, false)::flow_claim_candidate)
          INTO v_more FROM ready AS r;
        v_tasks := v_tasks || coalesce(v_more, '{}');
    END LOOP;

    RETURN QUERY
    SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key, t.crashed,
           t.is_dead
      FROM unnest(v_tasks) AS t
     ORDER BY t.priority, t.available_at, t.task_id
     LIMIT p_limit;
END
$$;

-- Whether a claim takes tasks of this workflow and kind, whatever their build.
CREATE FUNCTION flow_claim_takes(p_filter flow_claim_filter, p_workflow text, p_kind text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((p_filter).workflows IS NULL OR p_workflow IS NULL
        OR p_workflow = ANY ((p_filter).workflows))
   AND ((p_filter).kinds IS NULL OR p_kind = ANY ((p_filter).kinds));

-- Whether it takes those of this build too.
CREATE FUNCTION flow_claim_admits(
    p_filter flow_claim_filter, p_build text, p_workflow text, p_kind text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_build = '' THEN (p_filter).accept_unpinned
            ELSE (p_filter).builds IS NULL OR p_build = ANY ((p_filter).builds) END
   AND flow_claim_takes(p_filter, p_workflow, p_kind);

-- Refuses a lease without an owner or of no length.
CREATE FUNCTION flow_check_lease(p_owner text, p_lease interval) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(btrim(p_owner), '') = '' THEN
        PERFORM flow_raise_argument('p_owner', 'it is blank');
    ELSIF p_lease IS NULL OR p_lease <= interval '0'
        OR p_lease > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_lease',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_candidates(
    text, integer, timestamptz, flow_claim_filter, text[], bigint[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_admits(flow_claim_filter, text, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_takes(flow_claim_filter, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_lease(text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_candidates(
    text, integer, timestamptz, flow_claim_filter, text[], bigint[])
    IS 'Locks the rows of the next tasks that can be claimed.';
COMMENT ON FUNCTION flow_claim_admits(flow_claim_filter, text, text, text)
    IS 'Whether a claim takes tasks of this build, workflow and kind.';
COMMENT ON FUNCTION flow_claim_takes(flow_claim_filter, text, text)
    IS 'Whether a claim takes tasks of this workflow and kind.';
COMMENT ON FUNCTION flow_check_lease(text, interval)
    IS 'Refuses a lease without an owner or of no length.';
