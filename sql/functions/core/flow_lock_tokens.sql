-- flow_lock_tokens: takes the locks of hook tokens, after the locks of the runs.
-- Arguments: p_tokens, the tokens about to be claimed.
-- Locks, in order: one key a token, sorted by key. SQLSTATEs: none of its own. Callers: internal.
CREATE FUNCTION flow_lock_tokens(p_tokens text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(k.lock_key)
       FROM (SELECT DISTINCT flow_token_key(i.token) AS lock_key
               FROM unnest(p_tokens) AS i (token)
              WHERE i.token IS NOT NULL
              ORDER BY 1
             OFFSET 0) AS k;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_lock_tokens(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_lock_tokens(text[])
    IS 'Takes the locks of the given hook tokens, in order.';
