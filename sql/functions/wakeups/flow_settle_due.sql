-- flow_settle_due: appends the event that settles every due wakeup of one kind; what
-- flow_resume_due_waits and flow_dispose_expired_hooks share.
-- Arguments: p_kind (wait or hook_expiry); p_as_of, wakeups due until then, null for now; p_limit,
--   1 to 1000, the earliest first; p_run_id, one run, or null for all.
-- Returns what this call settled and nothing else.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. For all runs it never
--   waits for a run lock: a run that is busy right now is left for the next call, so that one
--   writer that takes its time cannot hold up all others.
-- SQLSTATEs: WF001, WF010, WF013. Callers: internal.
CREATE FUNCTION flow_settle_due(
    p_kind text, p_as_of timestamptz, p_limit integer, p_run_id text
) RETURNS TABLE (run_id text, subject_id text, due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz;
    v_until timestamptz;
    v_runs text[];
    v_subjects text[];
    v_dues timestamptz[];
BEGIN
    PERFORM flow_check_limit(p_limit);
    v_until := coalesce(p_as_of, flow_now());
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_open_run(p_run_id, '{}');
        v_runs := ARRAY[p_run_id];
    ELSE
        SELECT array_agg(DISTINCT d.run_id) INTO v_runs
          FROM flow_due(p_kind, v_until, p_limit) AS d;
        v_runs := flow_try_lock_runs(v_runs);
    END IF;

    -- under the locks: what is still due
    SELECT array_agg(d.run_id), array_agg(d.subject_id), array_agg(d.due_at)
      INTO v_runs, v_subjects, v_dues
      FROM (SELECT w.run_id, w.subject_id, w.due_at
              FROM scheduled_wakeups AS w
             WHERE w.run_id = ANY (v_runs) AND w.kind = p_kind AND w.due_at <= v_until
             ORDER BY w.due_at, w.run_id, w.subject_id
             LIMIT p_limit) AS d;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    v_at := flow_now();
    INSERT INTO flow_event_log
        (run_id, sequence, event_type, subject_id, payload, recorded_at)
    SELECT s.run_id, s.sequence,
           CASE p_kind WHEN 'wait' THEN 'wait_completed' ELSE 'hook_disposed' END, s.subject_id,
           format('{"%s":%s}', CASE p_kind WHEN 'wait' THEN 'wait_id' ELSE 'hook_id' END,
                  to_json(s.subject_id))::json, v_at
      FROM (SELECT d.run_id, d.subject_id,
                   r.head_sequence + row_number() OVER (PARTITION BY d.run_id ORDER BY d.n)
                       AS sequence
              FROM unnest(v_runs, v_subjects) WITH ORDINALITY AS d (run_id, subject_id, n)
             CROSS JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                                  WHERE f.run_id = d.run_id LIMIT 1) AS r) AS s;
    PERFORM flow_enqueue_drives(v_runs);
    RETURN QUERY
    SELECT d.run_id, d.subject_id, d.due_at
      FROM unnest(v_runs, v_subjects, v_dues) AS d (run_id, subject_id, due_at);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_due(text, timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_due(text, timestamptz, integer, text)
    IS 'Appends the event that settles every due wakeup of one kind.';
