-- flow_dead_letter: makes a task a dead letter, because it can never succeed.
-- Arguments: p_task_id; p_epoch, of the lease, or null for an operator who decides for its holder;
--   p_reason, shown to people: never a token or a payload.
-- Returns the id of the letter; null when the task is not there (any more), the lease is not held
--   under this epoch, or the run has ended and needs no letter.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_dead_letter(p_task_id bigint, p_epoch bigint, p_reason text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_letter bigint;
BEGIN
    IF coalesce(btrim(p_reason), '') = '' THEN
        PERFORM flow_raise_argument('p_reason', 'it is blank');
    END IF;
    PERFORM flow_lock_runs(ARRAY(
        SELECT t.run_id FROM flow_tasks AS t
         WHERE t.task_id = p_task_id AND t.kind = 'drive_run'));
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id = p_task_id
        AND (p_epoch IS NULL OR (t.epoch = p_epoch AND t.lease_expires_at IS NOT NULL))
        FOR UPDATE;
    IF FOUND THEN
        SELECT b.dead_letter_id INTO v_letter
          FROM flow_bury_tasks(ARRAY[p_task_id], left(p_reason, 2000)) AS b;
    END IF;
    RETURN v_letter;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dead_letter(bigint, bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dead_letter(bigint, bigint, text) IS 'Makes a task a dead letter.';
