-- flow_find_hook: which active hook has this token; no row if none has.
-- Arguments: p_token. Equality through the hash index, so the length of the token does not matter.
-- Locks: none. SQLSTATEs: none. Callers: client.
CREATE FUNCTION flow_find_hook(p_token text) RETURNS TABLE (run_id text, hook_id text)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT h.run_id, h.hook_id FROM flow_active_hooks AS h WHERE h.token = p_token
$$;

REVOKE EXECUTE ON FUNCTION flow_find_hook(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_find_hook(text) IS 'Which active hook has this token.';
