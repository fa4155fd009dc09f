-- flow_enqueue_due: turns due wakeups into drive tasks, one a run, and marks them dispatched.
-- Arguments: p_limit, 1 to 1000, the earliest first; p_as_of, due until then, null for now.
-- Returns what this call dispatched, with build, workflow and queue of the run. Any number of
--   callers may run at once: each wakeup is dispatched by one of them. A run that is busy right now
--   is left for the next call.
-- Locks, in order: rows and run locks, both only when free, so that it never waits for a run; then
--   queue rows, by run. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_enqueue_due(
    p_limit integer DEFAULT 1000, p_as_of timestamptz DEFAULT NULL
) RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text,
    workflow_name text, queue text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := coalesce(p_as_of, flow_now());
    v_rows flow_due_wakeup[];
    v_runs text[];
    v_free text[];
    v_low timestamptz;
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_move_wakeups_mark(flow_now());
    SELECT m.low_water INTO v_low FROM flow_marks AS m WHERE m.name = '' AND m.takes = '';
    v_low := coalesce(v_low, '-infinity');
    WITH due AS MATERIALIZED (
        SELECT w.run_id, w.kind, w.subject_id, w.due_at, w.ctid AS place
          FROM scheduled_wakeups AS w
         WHERE w.dispatched_at IS NULL AND w.due_at <= v_until AND w.due_at >= v_low
         ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(ROW(d.run_id, d.kind, d.subject_id, d.due_at, d.place)
               ::flow_due_wakeup),
           array_agg(DISTINCT d.run_id)
      INTO v_rows, v_runs
      FROM due AS d;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    v_free := flow_try_lock_runs(v_runs);
    IF cardinality(v_free) < cardinality(v_runs) THEN
        v_rows := ARRAY(SELECT d FROM unnest(v_rows) AS d WHERE d.run_id = ANY (v_free));
    END IF;
    -- by the places of the locked rows: as a join it is planned to compare every wakeup with every
    -- other
    UPDATE scheduled_wakeups AS w
       SET dispatched_at = flow_now()
     WHERE w.ctid = ANY (ARRAY(SELECT d.place FROM unnest(v_rows) AS d));
    PERFORM flow_enqueue_drives(v_free);
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build, r.workflow_name, r.queue
      FROM unnest(v_rows) AS d
      LEFT JOIN LATERAL (
            SELECT f.runtime_build, f.workflow_name, f.queue FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true
     ORDER BY d.due_at, d.run_id, d.kind, d.subject_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_due(integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_due(integer, timestamptz) IS 'Turns due wakeups into drive tasks.';
