-- flow_dispose_hook: withdraws a hook that is addressed by run and id.
-- Arguments: p_run_id, p_hook_id.
-- Returns run_id, subject_id (the hook), applied and the head. A disposed hook is not disposed
--   again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the run ended with the hook open, or knows no such hook; WF007 the hook
--   was answered or cancelled; WF009 unknown hook; WF010; WF013. Callers: client, worker.
CREATE FUNCTION flow_dispose_hook(p_run_id text, p_hook_id text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence
      FROM flow_settle_hook(p_run_id, p_hook_id, NULL, NULL) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dispose_hook(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dispose_hook(text, text) IS 'Withdraws a hook.';
