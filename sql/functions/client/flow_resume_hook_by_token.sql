-- flow_resume_hook_by_token: answers the active hook that has a token.
-- Arguments: p_token, the bearer token; p_payload, any JSON, handed to the workflow; p_checked, see
--   flow_resume_hook.
-- Returns run_id, subject_id (the hook), applied, the head and payload_schema, see there. Of two
--   callers with one token one is applied; the other finds no active hook any more.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF006 no active hook has the token; WF010; WF012. Callers: client, worker.
CREATE FUNCTION flow_resume_hook_by_token(
    p_token text, p_payload json, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_run_id text;
    v_hook_id text;
BEGIN
    SELECT o.run_id, o.hook_id INTO v_run_id, v_hook_id FROM flow_owner_of(p_token) AS o;
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence, s.payload_schema
      FROM flow_settle_hook(
        v_run_id, v_hook_id, coalesce(p_payload, 'null'), p_token, p_checked) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_hook_by_token(text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_hook_by_token(text, json, text)
    IS 'Answers the active hook that has a token.';
