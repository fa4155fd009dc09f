-- flow_add_lanes: trigger of flow_tasks: makes the lanes of new tasks known, and lowers the mark of
-- a lane that gets a task from before it. flow_move_lane does so for a task that is moved.
-- A lane that another transaction is moving right now is not lowered: the sweep of a claim finds
-- what that leaves out. So nobody waits here.
-- Locks: rows of flow_lanes, only when free. SQLSTATEs: none. Callers: the triggers.
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
        SELECT n.queue, n.priority, n.runtime_build, n.earliest, k.is_known
          FROM (SELECT t.queue, t.priority, t.runtime_build, min(t.available_at) AS earliest
                  FROM new_tasks AS t
                 GROUP BY t.queue, t.priority, t.runtime_build) AS n
          LEFT JOIN LATERAL (
                SELECT bool_or(f.takes = '') AS is_known, max(f.low_water) AS low_water
                  FROM flow_lanes AS f
                 WHERE f.queue = n.queue AND f.priority = n.priority
                   AND f.runtime_build = n.runtime_build) AS k ON true
         WHERE k.is_known IS NOT TRUE OR k.low_water > n.earliest
    LOOP
        PERFORM flow_open_lane(v_lane.queue, v_lane.priority, v_lane.runtime_build,
                               v_lane.earliest, v_lane.is_known);
    END LOOP;
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_move_lane() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM flow_open_lane(NEW.queue, NEW.priority, NEW.runtime_build, NEW.available_at, (
        SELECT bool_or(f.takes = '') FROM flow_lanes AS f
         WHERE f.queue = NEW.queue AND f.priority = NEW.priority
           AND f.runtime_build = NEW.runtime_build));
    RETURN NULL;
END
$$;

-- Adds a lane that is not known, and lowers its marks to a time before them.
CREATE FUNCTION flow_open_lane(
    p_queue text, p_priority smallint, p_build text, p_earliest timestamptz, p_is_known boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF p_is_known IS NOT TRUE THEN
        INSERT INTO flow_lanes (queue, priority, runtime_build)
        VALUES (p_queue, p_priority, p_build);
    END IF;
    UPDATE flow_lanes AS l
       SET low_water = p_earliest
      FROM (SELECT f.lane_id FROM flow_lanes AS f
             WHERE f.queue = p_queue AND f.priority = p_priority
               AND f.runtime_build = p_build AND f.low_water > p_earliest
               FOR UPDATE SKIP LOCKED) AS free
     WHERE l.lane_id = free.lane_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_add_lanes() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_move_lane() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_open_lane(text, smallint, text, timestamptz, boolean)
    FROM PUBLIC;
COMMENT ON FUNCTION flow_add_lanes() IS 'Makes the lanes of new tasks known.';
COMMENT ON FUNCTION flow_move_lane() IS 'Makes the lane known that a task was moved to.';
COMMENT ON FUNCTION flow_open_lane(text, smallint, text, timestamptz, boolean)
    IS 'Adds a lane that is not known, and lowers its marks.';
