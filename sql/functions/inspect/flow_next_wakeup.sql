-- flow_next_wakeup: the earliest deadline, by time, run, kind and id; no row when nothing is timed.
-- Arguments: none. Locks: none. SQLSTATEs: none. Callers: reader, client, worker.
CREATE FUNCTION flow_next_wakeup() RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM (SELECT b.run_id, b.kind, b.subject_id, b.due_at
              FROM ((SELECT w.run_id, w.kind, w.subject_id, w.due_at FROM scheduled_wakeups AS w
                      WHERE w.dispatched_at IS NULL
                      ORDER BY w.due_at, w.run_id, w.kind, w.subject_id LIMIT 1)
                     UNION ALL
                    (SELECT w.run_id, w.kind, w.subject_id, w.due_at FROM scheduled_wakeups AS w
                      WHERE w.dispatched_at IS NOT NULL
                      ORDER BY w.due_at, w.run_id, w.kind, w.subject_id LIMIT 1)) AS b
             ORDER BY b.due_at, b.run_id, b.kind, b.subject_id
             LIMIT 1) AS d
      JOIN flow_runs AS r ON r.run_id = d.run_id
$$;

REVOKE EXECUTE ON FUNCTION flow_next_wakeup() FROM PUBLIC;
COMMENT ON FUNCTION flow_next_wakeup() IS 'The earliest deadline.';
