-- flow_raise_token_conflict: raises WF005 for a hook whose token belongs to another active hook.
-- Arguments: the run and hook that wanted the token, and the run and hook that own it. Never the
--   token itself.
-- Locks: none. SQLSTATEs: WF005. Callers: internal.
CREATE FUNCTION flow_raise_token_conflict(
    p_run_id text, p_hook_id text, p_owner_run_id text, p_owner_hook_id text
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF005',
        format('run %s cannot create hook %s: its token belongs to hook %s of run %s',
            p_run_id, p_hook_id, p_owner_hook_id, p_owner_run_id),
        jsonb_build_object('run_id', p_owner_run_id, 'hook_id', p_owner_hook_id,
            'requested_run_id', p_run_id, 'requested_hook_id', p_hook_id),
        'Use another token, or resume or dispose the hook that owns it.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise_token_conflict(text, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise_token_conflict(text, text, text, text) IS 'Raises WF005.';
