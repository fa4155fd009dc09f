-- flow_terminate_for_host_shutdown: ends a run at once because its host will never resume it.
-- Arguments: p_run_id; p_reason, free text or null. Not for an ordinary stop of a worker.
-- Returns run_id, subject_id (null), applied and the head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF012, WF013. Callers: client, worker.
CREATE FUNCTION flow_terminate_for_host_shutdown(p_run_id text, p_reason text DEFAULT NULL)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT e.run_id, e.subject_id, e.applied, e.head_sequence
      FROM flow_end_run(p_run_id, 'run_host_shutdown',
               format('{"reason":%s}', coalesce(to_json(p_reason), 'null'))) AS e;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_terminate_for_host_shutdown(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminate_for_host_shutdown(text, text)
    IS 'Ends a run at once because its host will never resume it.';
