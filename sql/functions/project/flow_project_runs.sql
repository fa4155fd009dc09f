-- flow_project_runs: brings flow_runs up to date: head, status, times. It also is the guard of the
-- stream for every writer: a change that does not follow the head of its run is refused.
-- Arguments: p_changes, one a run; p_all_begin, whether each of them does nothing but create its
--   run, so that there is no row to bring up to date. Hooks and wakeups must be up to date: whether
--   any is open makes the difference between running and suspended.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: WF004, WF009, WF013. Callers: internal.
CREATE FUNCTION flow_project_runs(
    p_changes flow_run_change[], p_all_begin boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_change flow_run_change;
    v_done text[];
    v_moved integer := 0;
BEGIN
    IF NOT p_all_begin THEN
        UPDATE flow_runs AS r
           SET head_sequence = c.last_sequence,
               status = CASE
                   WHEN c.terminal_status IS NOT NULL THEN c.terminal_status
                   WHEN c.flags & 16 <> 0 OR r.status = 'cancelling' THEN 'cancelling'
                   WHEN r.status = 'pending' AND c.flags & 128 = 0 THEN 'pending'
                   -- a run that is running or has not started has nothing open, so only a new
                   -- opening can suspend it
                   WHEN (r.status NOT IN ('running', 'pending') OR c.flags & 6 <> 0)
                        AND flow_has_suspension(r.run_id) THEN 'suspended'
                   ELSE 'running'
               END,
               updated_at = c.recorded_at,
               ended_at = CASE WHEN c.terminal_status IS NOT NULL THEN c.recorded_at END,
               blocked_reason = CASE WHEN r.dead_letter_id IS NOT NULL
                                          AND c.terminal_status IS NULL
                                     THEN r.blocked_reason END
          FROM unnest(p_changes) AS c
         WHERE r.run_id = c.run_id
           AND c.flags & 64 = 0
           AND r.head_sequence = c.first_sequence - 1
           AND r.status NOT IN ('completed', 'failed', 'cancelled', 'continued_as_new');
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        IF v_moved = cardinality(p_changes) THEN
            RETURN;
        END IF;
    END IF;

    IF v_moved > 0 THEN
        v_done := ARRAY(
            SELECT c.run_id
              FROM unnest(p_changes) AS c
              JOIN flow_runs AS r ON r.run_id = c.run_id
             WHERE c.flags & 64 = 0 AND r.head_sequence = c.last_sequence);
    END IF;
    v_done := coalesce(v_done, '{}') || flow_project_created(p_changes);
    IF cardinality(v_done) = cardinality(p_changes) THEN
        RETURN;
    END IF;

    FOREACH v_change IN ARRAY p_changes LOOP
        IF v_change.run_id <> ALL (v_done) THEN
            PERFORM flow_refuse_projection(v_change);
        END IF;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_runs(flow_run_change[], boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_runs(flow_run_change[], boolean)
    IS 'Brings flow_runs up to date and refuses what does not follow the head.';
