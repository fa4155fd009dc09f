-- flow_open_run: locks a run and reads where it stands; the first step of every client verb.
-- Arguments: p_run_id; p_also, further runs to lock in the same sorted pass.
-- Returns status and head_sequence as they are under the lock.
-- Locks: retention guard (shared), run locks. SQLSTATEs: WF001, WF013. Callers: internal.
CREATE FUNCTION flow_open_run(
    p_run_id text, p_also text[], OUT status text, OUT head_sequence bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    PERFORM flow_lock_runs(p_run_id || p_also);
    SELECT r.status, r.head_sequence INTO status, head_sequence
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_open_run(text, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_open_run(text, text[]) IS 'Locks a run and reads where it stands.';
