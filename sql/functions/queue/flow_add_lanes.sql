-- flow_add_lanes: trigger of flow_tasks: makes the lanes of new tasks known, and lowers the mark of
-- a lane that gets a task from before it.
-- A lane that another transaction is moving right now is not lowered: the sweep of a claim finds
-- what that leaves out. So nobody waits here.
-- Locks: rows of flow_lanes, only when free. SQLSTATEs: none. Callers: the trigger.
CREATE FUNCTION flow_add_lanes() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_lane record;
BEGIN
    FOR v_lane IN
        SELECT n.queue, n.priority, n.runtime_build, n.earliest, k.low_water
          FROM (SELECT t.queue, t.priority, t.runtime_build, min(t.available_at) AS earliest
                  FROM new_tasks AS t
                 GROUP BY t.queue, t.priority, t.runtime_build) AS n
          LEFT JOIN LATERAL (
                SELECT min(f.low_water) AS low_water FROM flow_lanes AS f
                 WHERE f.queue = n.queue AND f.priority = n.priority
                   AND f.runtime_build = n.runtime_build) AS k ON true
         WHERE k.low_water IS NULL OR k.low_water > n.earliest
    LOOP
        IF v_lane.low_water IS NULL THEN
            INSERT INTO flow_lanes (queue, priority, runtime_build)
            VALUES (v_lane.queue, v_lane.priority, v_lane.runtime_build);
        ELSE
            UPDATE flow_lanes AS l
               SET low_water = v_lane.earliest
              FROM (SELECT f.lane_id FROM flow_lanes AS f
                     WHERE f.queue = v_lane.queue AND f.priority = v_lane.priority
                       AND f.runtime_build = v_lane.runtime_build
                       AND f.low_water > v_lane.earliest
                       FOR UPDATE SKIP LOCKED) AS free
             WHERE l.lane_id = free.lane_id;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_add_lanes() FROM PUBLIC;
COMMENT ON FUNCTION flow_add_lanes() IS 'Makes the lanes of new tasks known.';
