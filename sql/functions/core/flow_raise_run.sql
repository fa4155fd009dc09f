-- The errors that many verbs raise, so that each has one wording.
--   flow_raise_not_found(run)          WF001
--   flow_raise_terminal(run, status)   WF004
--   flow_raise_transition(run, why)    WF009, run may be null
--   flow_raise_argument(name, why)     WF010
--   flow_raise_run_id(run)             WF013
-- Arguments: the run, and words that never hold a token or a payload.
-- Locks: none. SQLSTATEs: as listed. Callers: internal.
CREATE FUNCTION flow_raise_not_found(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF001', format('run %s does not exist', coalesce(p_run_id, '(null)')),
        jsonb_build_object('run_id', p_run_id),
        'Check the run id, and that the run was started in this schema.');
END
$$;

CREATE FUNCTION flow_raise_terminal(p_run_id text, p_status text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF004', format('run %s has already ended: %s', p_run_id, p_status),
        jsonb_build_object('run_id', p_run_id, 'status', p_status),
        'A run that has ended accepts no further event; start a new run.');
END
$$;

CREATE FUNCTION flow_raise_transition(p_run_id text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF009',
        CASE WHEN p_run_id IS NULL THEN p_reason ELSE format('run %s: %s', p_run_id, p_reason) END,
        jsonb_strip_nulls(jsonb_build_object('run_id', p_run_id, 'reason', p_reason)),
        'Read the run''s history with flow_history to see what it allows next.');
END
$$;

CREATE FUNCTION flow_raise_argument(p_argument text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF010', format('argument %s is not valid: %s', p_argument, p_reason),
        jsonb_build_object('argument', p_argument, 'reason', p_reason),
        'Correct the argument and call again; nothing was changed.');
END
$$;

CREATE FUNCTION flow_raise_run_id(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF013',
        format('run id %s is not valid', coalesce(quote_literal(left(p_run_id, 64)), '(null)')),
        jsonb_strip_nulls(jsonb_build_object('run_id', left(p_run_id, 64))),
        'A run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + - and starts with a letter or digit.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise_not_found(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_terminal(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_transition(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_argument(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_run_id(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise_not_found(text) IS 'Raises WF001.';
COMMENT ON FUNCTION flow_raise_terminal(text, text) IS 'Raises WF004.';
COMMENT ON FUNCTION flow_raise_transition(text, text) IS 'Raises WF009.';
COMMENT ON FUNCTION flow_raise_argument(text, text) IS 'Raises WF010.';
COMMENT ON FUNCTION flow_raise_run_id(text) IS 'Raises WF013.';
