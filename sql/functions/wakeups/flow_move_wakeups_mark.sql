-- The mark of the wakeups: from where on the index of those that are not dispatched is read. Behind
-- an old snapshot the index keeps the entries of all that were dispatched since.
--   flow_move_wakeups_mark(now)    up to the first that is still there, every two seconds at most;
--                                  every five seconds the index is read from its very start, for
--                                  rows that were committed late; less often where that takes long
--   flow_lower_mark(name, time)    down to a new row from before it
-- Nothing is moved in a transaction that keeps one snapshot, and nobody is waited for.
-- Arguments: as named. Locks: rows of flow_marks, only when free. SQLSTATEs: none. Callers:
--   internal.
CREATE FUNCTION flow_move_wakeups_mark(p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    c_margin CONSTANT interval := '2 seconds';
    v_mark record;
    v_first timestamptz;
    v_began timestamptz := flow_now();
BEGIN
    IF flow_is_repeatable() OR NOT flow_mark_is_due('', p_now, c_margin) THEN
        RETURN;
    END IF;
    SELECT m.low_water, m.swept_at NOT BETWEEN p_now - m.sweep_every AND p_now AS sweeps
      INTO v_mark
      FROM flow_marks AS m
     WHERE m.name = '' AND m.takes = '' AND m.moved_at NOT BETWEEN p_now - c_margin AND p_now
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT w.due_at INTO v_first
      FROM scheduled_wakeups AS w
     WHERE w.dispatched_at IS NULL
       AND w.due_at >= CASE WHEN v_mark.sweeps THEN '-infinity' ELSE v_mark.low_water END
       AND w.due_at <= p_now - c_margin
     ORDER BY w.due_at LIMIT 1;
    UPDATE flow_marks AS m
       SET low_water = coalesce(v_first, p_now - c_margin), moved_at = p_now,
           swept_at = CASE WHEN v_mark.sweeps THEN p_now ELSE m.swept_at END,
           sweep_every = CASE WHEN v_mark.sweeps
               THEN greatest(interval '5 seconds', 100 * (flow_now() - v_began))
               ELSE m.sweep_every END
     WHERE m.name = '' AND m.takes = '';
END
$$;

CREATE FUNCTION flow_lower_mark(p_name text, p_time timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM FROM flow_marks AS m
      WHERE m.name = p_name AND m.takes = '' AND m.low_water > p_time;
    IF FOUND THEN
        UPDATE flow_marks AS m
           SET low_water = p_time
          FROM (SELECT f.name FROM flow_marks AS f
                 WHERE f.name = p_name AND f.takes = '' AND f.low_water > p_time
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE m.name = free.name AND m.takes = '';
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_move_wakeups_mark(timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_lower_mark(text, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_move_wakeups_mark(timestamptz)
    IS 'Moves the mark of the wakeups up to the first that is still there.';
COMMENT ON FUNCTION flow_lower_mark(text, timestamptz) IS 'Lowers a mark to a new row before it.';
