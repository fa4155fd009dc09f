-- flow_json_equal: whether two JSON values say the same.
-- Arguments: a, b. Equal text is equal; otherwise equal as jsonb (member order, spacing and the
--   spelling of numbers do not matter); what jsonb cannot hold (\u0000, lone surrogates, numbers
--   beyond its range) is equal only as text. Two nulls are equal.
-- Locks: none. SQLSTATEs: none, it never raises. Callers: internal.
CREATE FUNCTION flow_json_equal(a json, b json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF a IS NULL OR b IS NULL THEN
        RETURN a IS NULL AND b IS NULL;
    END IF;
    IF a::text = b::text THEN
        RETURN true;
    END IF;
    RETURN a::text::jsonb = b::text::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_json_equal(json, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_equal(json, json)
    IS 'Whether two JSON values say the same; never raises.';
