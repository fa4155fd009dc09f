-- flow_try_lock_runs: takes the locks of those runs that nobody else is working on.
-- Arguments: p_run_ids. Returns the runs that are locked now; it never waits for a run.
-- Locks, in order: retention guard (shared), run locks if free. SQLSTATEs: 40001 as flow_lock_runs.
-- Callers: internal. A statement of its own, like flow_lock_runs.
CREATE FUNCTION flow_try_lock_runs(p_run_ids text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_locked text[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(flow_retention_key());
    v_locked := ARRAY(SELECT i.run_id FROM unnest(p_run_ids) AS i (run_id)
                       WHERE pg_try_advisory_xact_lock(flow_run_key(i.run_id)));
    IF flow_is_repeatable() THEN
        PERFORM FROM flow_runs AS r
          WHERE r.run_id = ANY (v_locked) ORDER BY r.run_id FOR NO KEY UPDATE;
    END IF;
    RETURN v_locked;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_try_lock_runs(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_try_lock_runs(text[]) IS 'Takes the locks of runs that are free.';
