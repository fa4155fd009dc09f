-- flow_lock_runs: takes the locks that every writer holds before it looks at a run.
-- Arguments: p_run_ids, the runs that will be read, appended to or linked; unknown ids are fine.
-- Locks, in order: the retention guard (shared), then one key a run, sorted by key.
-- It must be a statement of its own: the statement after it sees what the lock protected.
-- SQLSTATEs: WF009 where the session keeps triggers from firing, as who loads in bulk may have it:
--   an event would be stored that no projection knows of. 40001 under REPEATABLE READ or
--   SERIALIZABLE when a run has moved since the snapshot.
-- Callers: internal, and foreign writers before a direct INSERT.
CREATE FUNCTION flow_lock_runs(p_run_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica' THEN
        PERFORM flow_raise_transition(NULL, 'session_replication_role is replica here, so that '
            'nothing would keep the projections; set it to origin before verbs are called');
    END IF;
    PERFORM pg_advisory_xact_lock_shared(flow_retention_key());
    PERFORM pg_advisory_xact_lock(k.lock_key)
       FROM (SELECT DISTINCT flow_run_key(i.run_id) AS lock_key
               FROM unnest(p_run_ids) AS i (run_id)
              WHERE i.run_id IS NOT NULL
              ORDER BY 1
             OFFSET 0) AS k;
    IF flow_is_repeatable() THEN
        PERFORM FROM flow_runs AS r
          WHERE r.run_id = ANY (p_run_ids) ORDER BY r.run_id FOR NO KEY UPDATE;
    END IF;
END
$$;

-- Whether the transaction keeps one snapshot. It may be older than the locks then, and what it
-- shows be out of date; touching the rows of the runs raises 40001 in that case, as PostgreSQL
--   would.
CREATE FUNCTION flow_is_repeatable() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('transaction_isolation') IN ('repeatable read', 'serializable');

REVOKE EXECUTE ON FUNCTION flow_is_repeatable() FROM PUBLIC;
COMMENT ON FUNCTION flow_is_repeatable() IS 'Whether the transaction keeps one snapshot.';

REVOKE EXECUTE ON FUNCTION flow_lock_runs(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_lock_runs(text[])
    IS 'Takes the retention guard and the locks of the given runs, in order.';
