-- Every advisory lock key of the schema is named here, and nowhere else.
--   flow_retention_key()   one key, shared by all writers, exclusive for retention
--   flow_run_key(run)      one key a run: whoever appends to a run or touches its task holds it
--   flow_token_key(token)  one key a hook token: whoever creates a hook with that token holds it
--   flow_mark_key(name)    one key a row of flow_marks or flow_idle_queues, for whoever adds it
-- All are 64-bit keys of transaction-level locks. Equal keys of two runs only make them wait for
-- each other. The seeds keep the key spaces apart.
-- Arguments: a run id, a token, a name. Locks: none (they only name keys). SQLSTATEs: none.
-- Callers: internal. Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_retention_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7308895157390442086::bigint;

CREATE FUNCTION flow_run_key(p_run_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_run_id COLLATE "C", 8243111874320954482);

CREATE FUNCTION flow_token_key(p_token text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_token COLLATE "C", 2738188573525177710);

CREATE FUNCTION flow_mark_key(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_name COLLATE "C", 5471938207719163);

REVOKE EXECUTE ON FUNCTION flow_retention_key() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_run_key(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_token_key(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_mark_key(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_retention_key() IS 'Advisory lock key of the retention guard.';
COMMENT ON FUNCTION flow_run_key(text) IS 'Advisory lock key of a run.';
COMMENT ON FUNCTION flow_token_key(text) IS 'Advisory lock key of a hook token.';
COMMENT ON FUNCTION flow_mark_key(text) IS 'Advisory lock key of a mark or idle hint.';
