-- flow_run_id_is_valid: 1 to 255 characters of A-Z a-z 0-9 . _ : @ + -, starting alphanumeric.
-- Arguments: p_run_id. Locks: none. SQLSTATEs: none. Callers: internal.
-- The length is not part of the expression: as a bound of 254 repetitions it takes 30 us to match.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_run_id_is_valid(p_run_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(octet_length(p_run_id) <= 255
    AND p_run_id COLLATE "C" ~ '^[A-Za-z0-9][A-Za-z0-9._:@+-]*$', false);

REVOKE EXECUTE ON FUNCTION flow_run_id_is_valid(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_run_id_is_valid(text) IS 'Whether a text may be a run id.';
