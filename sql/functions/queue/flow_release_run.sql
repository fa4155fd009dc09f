-- flow_release_run: gives the lease of a run back because there is nothing left to do.
-- Arguments: p_run_id; p_epoch, of the lease; p_wakes, the wake count its holder has seen.
-- Returns true when the task is gone, also when it is asked again. False: the run was woken
--   meanwhile and the lease stays (look again), or the lease is not held any more. A run that has
--   ended is always released.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: none.
-- Callers: worker.
CREATE FUNCTION flow_release_run(p_run_id text, p_epoch bigint, p_wakes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_released boolean;
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT r.released INTO v_released
      FROM flow_release(ARRAY[p_run_id], ARRAY[p_epoch], ARRAY[p_wakes]) AS r;
    RETURN v_released;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_run(text, bigint, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_run(text, bigint, bigint)
    IS 'Gives the lease of a run back because there is nothing left to do.';
