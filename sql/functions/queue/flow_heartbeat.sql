-- flow_heartbeat: extends leases, all those of a process in one call.
-- Arguments: p_leases, a JSON array of {"run_id", "epoch"} or, for tasks of other kinds,
--   {"task_id", "epoch"}; p_lease, how long from now.
-- Returns one row a lease, in order: held, the wake count and head of the run now. A lease that
--   expired but was not taken by anybody is still held. A row that another transaction is changing
--   right now is not waited for: nobody can take that lease meanwhile, and the next heartbeat
--   extends it.
-- Locks: queue rows, only when free. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_heartbeat(p_leases json, p_lease interval)
RETURNS TABLE (
    run_id text, held boolean, wakes bigint, head_sequence bigint, task_id bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_tasks bigint[];
    v_until timestamptz;
BEGIN
    IF p_lease IS NULL OR p_lease <= interval '0' OR p_lease > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_lease',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
    v_until := flow_now() + p_lease;
    BEGIN
        SELECT array_agg(l.run_id), array_agg(l.epoch), array_agg(l.task_id)
          INTO v_runs, v_epochs, v_tasks
          FROM json_to_recordset(p_leases) AS l (run_id text, epoch bigint, task_id bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_leases', 'it must be an array of {"run_id", "epoch"}');
    END;
    WITH mine AS MATERIALIZED (
        -- one lookup a lease: as a join it is planned, while the table is small, to compare every
        -- task with every lease
        SELECT o.task_id
          FROM unnest(v_runs, v_epochs) AS l (run_id, epoch)
         CROSS JOIN LATERAL (
                SELECT t.task_id
                  FROM flow_tasks AS t
                 WHERE t.run_id = l.run_id AND t.kind = 'drive_run'
                   AND t.epoch = l.epoch AND t.lease_expires_at IS NOT NULL
                   FOR UPDATE SKIP LOCKED) AS o
    )
    UPDATE flow_tasks AS t
       SET lease_expires_at = v_until
     WHERE t.task_id = ANY (ARRAY(SELECT m.task_id FROM mine AS m));
    WITH mine AS MATERIALIZED (
        SELECT o.task_id
          FROM unnest(v_tasks, v_epochs) AS l (task_id, epoch)
         CROSS JOIN LATERAL (
                SELECT t.task_id
                  FROM flow_tasks AS t
                 WHERE t.task_id = l.task_id AND t.kind <> 'drive_run'
                   AND t.epoch = l.epoch AND t.lease_expires_at IS NOT NULL
                   FOR UPDATE SKIP LOCKED) AS o
    )
    UPDATE flow_tasks AS t
       SET lease_expires_at = v_until
     WHERE t.task_id = ANY (ARRAY(SELECT m.task_id FROM mine AS m));
    RETURN QUERY
    SELECT l.run_id, coalesce(t.epoch = l.epoch AND t.lease_owner IS NOT NULL, false),
           coalesce(t.wakes, 0), coalesce(r.head_sequence, 0), coalesce(l.task_id, t.task_id)
      FROM unnest(v_runs, v_epochs, v_tasks) WITH ORDINALITY AS l (run_id, epoch, task_id, n)
      LEFT JOIN LATERAL (
            (SELECT f.epoch, f.lease_owner, f.wakes, f.task_id FROM flow_tasks AS f
              WHERE f.run_id = l.run_id AND f.kind = 'drive_run' LIMIT 1)
            UNION ALL
            (SELECT f.epoch, f.lease_owner, f.wakes, f.task_id FROM flow_tasks AS f
              WHERE l.run_id IS NULL AND f.task_id = l.task_id LIMIT 1)) AS t ON true
      LEFT JOIN LATERAL (
            SELECT f.head_sequence FROM flow_runs AS f
             WHERE f.run_id = l.run_id LIMIT 1) AS r ON true
     ORDER BY l.n;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_heartbeat(json, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_heartbeat(json, interval) IS 'Extends leases.';
