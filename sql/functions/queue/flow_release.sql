-- flow_release: gives leases back and deletes their drive tasks, unless the runs were woken
-- meanwhile. Internal form of flow_release_run and of the release in an append.
-- Arguments: p_run_ids, p_epochs, p_wakes: three arrays, one entry a run: the epoch of the lease
--   and the wake count its holder has seen. A run that has ended is always released.
-- Returns one row a run: released, and the wake count as it is now (0 when the lease is not held).
-- Released is also the answer when this lease's task is gone already and nobody took another lease
-- since: so a release whose answer was lost can be repeated. Not released means that the run was
-- woken, and the lease stays, or that the lease is not held.
-- Locks: queue rows, by run; the run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_release(p_run_ids text[], p_epochs bigint[], p_wakes bigint[])
RETURNS TABLE (run_id text, released boolean, wakes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_gone text[];
BEGIN
    WITH gone AS (
        DELETE FROM flow_tasks AS t
              -- an array: as a join it is planned, while the table is small, to compare every
              -- task with every run
              WHERE t.task_id = ANY (ARRAY(
                    SELECT f.task_id
                      FROM (SELECT i.run_id, i.epoch, i.wakes
                              FROM unnest(p_run_ids, p_epochs, p_wakes)
                                   AS i (run_id, epoch, wakes)
                             ORDER BY i.run_id) AS g
                     CROSS JOIN LATERAL (
                            SELECT o.task_id, o.wakes
                              FROM flow_tasks AS o
                             WHERE o.run_id = g.run_id AND o.kind = 'drive_run'
                               AND o.epoch = g.epoch AND o.lease_expires_at IS NOT NULL
                             LIMIT 1) AS f
                     WHERE f.wakes = g.wakes OR flow_is_terminal(
                            (SELECT r.status FROM flow_runs AS r WHERE r.run_id = g.run_id))))
          RETURNING t.run_id
    )
    SELECT coalesce(array_agg(d.run_id), '{}') INTO v_gone FROM gone AS d;
    -- not plainly IS NOT NULL: the index of all blocked runs is not where to look these up
    UPDATE flow_runs AS r
       SET blocked_reason = NULL
     WHERE r.run_id = ANY (v_gone) AND (r.blocked_reason || '') IS NOT NULL
       AND r.dead_letter_id IS NULL;
    RETURN QUERY
    SELECT g.run_id,
           g.run_id = ANY (v_gone)
               OR (t.wakes IS NULL AND coalesce(r.lease_epoch = g.epoch, false)),
           coalesce(t.wakes, 0)
      FROM unnest(p_run_ids, p_epochs) AS g (run_id, epoch)
      LEFT JOIN LATERAL (
            SELECT f.wakes FROM flow_tasks AS f
             WHERE f.run_id = g.run_id AND f.kind = 'drive_run' AND f.epoch = g.epoch
             LIMIT 1) AS t ON true
      LEFT JOIN LATERAL (
            SELECT f.lease_epoch FROM flow_runs AS f
             WHERE f.run_id = g.run_id LIMIT 1) AS r ON true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release(text[], bigint[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_release(text[], bigint[], bigint[])
    IS 'Gives leases back and deletes their drive tasks, unless the runs were woken meanwhile.';
