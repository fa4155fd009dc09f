-- flow_raise: raises one error of class WF.
-- Arguments: p_sqlstate (WF001 to WF013, see sql/README.md); p_message, a sentence naming the run;
--   p_detail, the fields of the error, sent as JSON in DETAIL; p_hint, what to do.
--   Never a hook token or a payload in any of them.
-- Locks: none. SQLSTATEs: the one given. Callers: internal.
CREATE FUNCTION flow_raise(p_sqlstate text, p_message text, p_detail jsonb, p_hint text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = p_sqlstate,
        MESSAGE = p_message,
        DETAIL = p_detail::text,
        HINT = p_hint;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise(text, text, jsonb, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise(text, text, jsonb, text) IS 'Raises one error of class WF.';
