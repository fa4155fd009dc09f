-- flow_give_back: gives the lease of a run up with work left, for somebody else to take.
-- Arguments: p_run_id; p_epoch, of the lease; p_delay, how long nobody shall take it; a
--   p_blocked_reason that is not null marks the run as blocked, until its next append or release;
--   p_missing_step, the step that is not known here, where that is the reason; p_unused, whether
--   the attempt was not used and is not counted (flow_release_tasks counts none).
-- Returns false, and does nothing, when the lease is not held under this epoch.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_give_back(
    p_run_id text, p_epoch bigint, p_delay interval DEFAULT '0', p_blocked_reason text DEFAULT NULL,
    p_missing_step text DEFAULT NULL, p_unused boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_queue text;
BEGIN
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    UPDATE flow_tasks AS t
       SET lease_owner = NULL, lease_expires_at = NULL,
           available_at = flow_now() + greatest(coalesce(p_delay, '0'), '0'),
           missing_step = p_missing_step,
           attempts = greatest(t.attempts - coalesce(p_unused, false)::integer, 0)
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run' AND t.epoch = p_epoch
       AND t.lease_expires_at IS NOT NULL
    RETURNING t.queue INTO v_queue;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF coalesce(p_delay, '0') <= '0' THEN
        PERFORM flow_notify_idle(ARRAY[v_queue]);
    END IF;
    IF p_blocked_reason IS NOT NULL THEN
        UPDATE flow_runs AS r SET blocked_reason = p_blocked_reason WHERE r.run_id = p_run_id;
    END IF;
    RETURN true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_give_back(text, bigint, interval, text, text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_give_back(text, bigint, interval, text, text, boolean)
    IS 'Gives the lease of a run up with work left.';
