-- flow_move_lanes: moves the marks of the lanes of a queue up to the first task that claims with a
-- filter take; what flow_move_marks and flow_move_claim_marks share.
-- Arguments: p_queue; p_until, no mark moves beyond it; p_sweeps, whether the lanes are read from
--   their very start; p_filter, whose member takes says which marks.
-- Locks: rows of flow_lanes, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_move_lanes(
    p_queue text, p_until timestamptz, p_sweeps boolean, p_filter flow_claim_filter
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_lane record;
    v_first timestamptz;
BEGIN
    FOR v_lane IN
        SELECT l.lane_id, l.priority, l.runtime_build, l.low_water
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes = p_filter.takes FOR UPDATE SKIP LOCKED
    LOOP
        SELECT t.available_at INTO v_first
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_lane.priority
           AND t.runtime_build = v_lane.runtime_build
           AND t.available_at >= CASE WHEN p_sweeps THEN '-infinity' ELSE v_lane.low_water END
           AND t.available_at <= p_until
           AND flow_claim_takes(p_filter, t.workflow_name, t.kind)
         ORDER BY t.available_at LIMIT 1;
        UPDATE flow_lanes AS l
           SET low_water = coalesce(v_first, p_until)
         WHERE l.lane_id = v_lane.lane_id;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_move_lanes(text, timestamptz, boolean, flow_claim_filter)
    FROM PUBLIC;
COMMENT ON FUNCTION flow_move_lanes(text, timestamptz, boolean, flow_claim_filter)
    IS 'Moves the marks of the lanes of a queue up to the first task that such claims take.';
