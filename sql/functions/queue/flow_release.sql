-- flow_release: gives leases back and deletes their drive tasks, unless the runs were woken
-- meanwhile. Internal form of flow_release_run and of the release in an append.
-- Arguments: p_run_ids, p_epochs, p_wakes: three arrays, one entry a run: the epoch of the lease and
--   the wake count its holder has seen. A run that has ended is always released.
-- Returns one row a run: released, and the wake count as it is now (0 when nothing is left).
-- Locks: queue rows, by run; the run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_release(p_run_ids text[], p_epochs bigint[], p_wakes bigint[])
RETURNS TABLE (run_id text, released boolean, wakes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM flow_tasks AS t
          USING (SELECT i.run_id, i.epoch, i.wakes
                   FROM unnest(p_run_ids, p_epochs, p_wakes) AS i (run_id, epoch, wakes)
                  ORDER BY i.run_id) AS g
          WHERE t.run_id = g.run_id AND t.kind = 'drive_run' AND t.epoch = g.epoch
            AND (t.wakes = g.wakes OR flow_is_terminal(
                    (SELECT r.status FROM flow_runs AS r WHERE r.run_id = g.run_id)));
    UPDATE flow_runs AS r
       SET blocked_reason = NULL
      FROM unnest(p_run_ids, p_epochs) AS g (run_id, epoch)
     WHERE r.run_id = g.run_id AND r.lease_epoch = g.epoch AND r.blocked_reason IS NOT NULL;
    -- no task of this lease is left: it was deleted just now, or by an earlier call whose answer
    -- was lost
    RETURN QUERY
    SELECT g.run_id, t.task_id IS NULL, coalesce(t.wakes, 0)
      FROM unnest(p_run_ids, p_epochs) AS g (run_id, epoch)
      LEFT JOIN LATERAL (
            SELECT f.task_id, f.wakes FROM flow_tasks AS f
             WHERE f.run_id = g.run_id AND f.kind = 'drive_run' AND f.epoch = g.epoch
             LIMIT 1) AS t ON true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release(text[], bigint[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_release(text[], bigint[], bigint[])
    IS 'Gives leases back and deletes their drive tasks, unless the runs were woken meanwhile.';
