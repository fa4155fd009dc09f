-- flow_move_marks: moves the marks of a queue's lanes and leases up to the first task and lease
-- that is still there. Called by every claim; it works at most every two seconds.
-- A mark stays two seconds behind the clock, for transactions that commit a moment after they have
-- read it. Every five seconds the index is read from its very start, for those that took longer,
-- and for lanes that were left out: that bounds how long a late task can be overlooked. Where that
-- takes long, because of what an old snapshot keeps, it is done less often, so that it never is
-- more than a hundredth of the work.
-- Arguments: p_queue, p_now. Nothing is moved in a transaction that keeps one snapshot.
-- Locks: rows of flow_lanes and flow_marks, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_move_marks(p_queue text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    c_margin CONSTANT interval := '2 seconds';
    v_first timestamptz;
    v_mark record;
    v_began timestamptz;
BEGIN
    IF flow_is_repeatable() OR NOT flow_mark_is_due(p_queue, p_now, c_margin) THEN
        RETURN;
    END IF;
    -- whoever has this row moves everything of the queue
    SELECT m.low_water, m.swept_at NOT BETWEEN p_now - m.sweep_every AND p_now AS sweeps
      INTO v_mark
      FROM flow_marks AS m
     WHERE m.name = p_queue AND m.takes = '' AND m.moved_at NOT BETWEEN p_now - c_margin AND p_now
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_began := flow_now();
    SELECT t.lease_expires_at INTO v_first
      FROM flow_tasks AS t
     WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
       AND t.lease_expires_at >= CASE WHEN v_mark.sweeps THEN '-infinity' ELSE v_mark.low_water END
       AND t.lease_expires_at <= p_now - c_margin
     ORDER BY t.lease_expires_at LIMIT 1;
    UPDATE flow_marks AS m
       SET low_water = coalesce(v_first, p_now - c_margin), moved_at = p_now,
           swept_at = CASE WHEN v_mark.sweeps THEN p_now ELSE m.swept_at END
     WHERE m.name = p_queue AND m.takes = '';

    IF v_mark.sweeps THEN
        PERFORM flow_find_lanes(p_queue);
        DELETE FROM flow_lanes AS l
              USING (SELECT f.lane_id FROM flow_lanes AS f
                      WHERE f.queue = p_queue AND EXISTS (
                            SELECT FROM flow_lanes AS e
                             WHERE e.queue = f.queue AND e.priority = f.priority
                               AND e.runtime_build = f.runtime_build AND e.takes = f.takes
                               AND e.lane_id < f.lane_id)
                        FOR UPDATE OF f SKIP LOCKED) AS doubles
              WHERE l.lane_id = doubles.lane_id;
    END IF;
    PERFORM flow_move_lanes(p_queue, p_now - c_margin, v_mark.sweeps,
                            ROW(NULL, NULL, NULL, NULL, NULL, '')::flow_claim_filter);
    IF v_mark.sweeps THEN
        UPDATE flow_marks AS m
           SET sweep_every = greatest(interval '5 seconds', 100 * (flow_now() - v_began))
         WHERE m.name = p_queue AND m.takes = '';
    END IF;
END
$$;

-- Whether a mark was not looked at for so long, or at a time that is yet to come because the clock
-- was set back; adds the mark when it is not there.
CREATE FUNCTION flow_mark_is_due(
    p_name text, p_now timestamptz, p_margin interval, p_takes text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
DECLARE
    v_moved timestamptz;
BEGIN
    SELECT m.moved_at INTO v_moved
      FROM flow_marks AS m WHERE m.name = p_name AND m.takes = p_takes;
    IF NOT FOUND AND pg_try_advisory_xact_lock(flow_mark_key(p_takes || p_name)) THEN
        INSERT INTO flow_marks (name, takes) VALUES (p_name, p_takes) ON CONFLICT DO NOTHING;
        RETURN FOUND;
    END IF;
    RETURN coalesce(v_moved NOT BETWEEN p_now - p_margin AND p_now, false);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_move_marks(text, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_mark_is_due(text, timestamptz, interval, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_move_marks(text, timestamptz)
    IS 'Moves the marks of a queue up to the first task and lease that is still there.';
COMMENT ON FUNCTION flow_mark_is_due(text, timestamptz, interval, text)
    IS 'Whether a mark was not looked at for so long.';
