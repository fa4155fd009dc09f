-- flow_terminate_for_timeout: ends a run at once because its deadline passed.
-- Arguments: p_run_id; p_deadline, the deadline that passed; p_reason, free text or null.
-- Returns run_id, subject_id (null), applied and the head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF010, WF012, WF013. Callers: client, worker.
CREATE FUNCTION flow_terminate_for_timeout(
    p_run_id text, p_deadline timestamptz, p_reason text DEFAULT NULL
)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF p_deadline IS NULL
        OR p_deadline < '0001-01-01 00:00:00+00' OR p_deadline >= '10000-01-01 00:00:00+00'
    THEN
        PERFORM flow_raise_argument('p_deadline', 'it must be a time of the years 1 to 9999');
    END IF;
    RETURN QUERY
    SELECT e.run_id, e.subject_id, e.applied, e.head_sequence
      FROM flow_end_run(p_run_id, 'run_timed_out',
               format('{"deadline":"%s","reason":%s}', flow_time_text(p_deadline),
                   coalesce(to_json(p_reason), 'null'))) AS e;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_terminate_for_timeout(text, timestamptz, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminate_for_timeout(text, timestamptz, text)
    IS 'Ends a run at once because its deadline passed.';
