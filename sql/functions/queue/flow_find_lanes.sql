-- flow_find_lanes: adds the lanes of a queue that the index of tasks has and flow_lanes does not
-- know. The index is read from lane to lane, not from task to task.
-- Arguments: p_queue. Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_find_lanes(p_queue text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_lane record;
    v_queue text := p_queue;
    v_priority smallint := -32768;
    v_build text := '';
    v_beyond timestamptz := '-infinity';
BEGIN
    LOOP
        SELECT t.queue, t.priority, t.runtime_build INTO v_lane
          FROM flow_tasks AS t
         WHERE t.lease_owner IS NULL
           AND (t.queue, t.priority, t.runtime_build, t.available_at)
               > (v_queue, v_priority, v_build, v_beyond)
         ORDER BY t.queue, t.priority, t.runtime_build, t.available_at, t.task_id
         LIMIT 1;
        EXIT WHEN NOT FOUND OR v_lane.queue <> p_queue;
        v_queue := v_lane.queue;
        v_priority := v_lane.priority;
        v_build := v_lane.runtime_build;
        v_beyond := 'infinity';  -- the end of this lane
        PERFORM FROM flow_lanes AS l
          WHERE l.queue = v_queue AND l.priority = v_priority AND l.runtime_build = v_build
            AND l.takes = '';
        IF NOT FOUND THEN
            INSERT INTO flow_lanes (queue, priority, runtime_build)
            VALUES (v_queue, v_priority, v_build);
        END IF;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_find_lanes(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_find_lanes(text) IS 'Adds the lanes of a queue that are not known yet.';
