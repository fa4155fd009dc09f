-- flow_resume_hook: answers a hook that is addressed by run and id.
-- Arguments: p_run_id, p_hook_id; p_payload, any JSON, handed to the workflow; p_checked, the text
--   of the schema that the payload was checked against, empty for none. Null not to ask: then
--   nothing is checked.
-- Returns run_id, subject_id (the hook), applied, the head, and payload_schema: null, or, if the
--   hook has another schema than p_checked, that one, and then nothing was done. The same payload
--   again is not applied again, also after the end of the run.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the run ended with the hook unanswered, or knows no such hook; WF007 the
--   hook was answered otherwise, disposed or cancelled; WF009 unknown hook; WF010; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_resume_hook(
    p_run_id text, p_hook_id text, p_payload json, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence, s.payload_schema
      FROM flow_settle_hook(p_run_id, p_hook_id, coalesce(p_payload, 'null'), NULL, p_checked) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_hook(text, text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_hook(text, text, json, text) IS 'Answers a hook.';
