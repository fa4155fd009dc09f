-- flow_check_limit: refuses a page size or batch size outside 1 to 1000.
-- Arguments: p_limit. Locks: none. SQLSTATEs: WF010. Callers: internal.
CREATE FUNCTION flow_check_limit(p_limit integer) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 1000 THEN
        PERFORM flow_raise_argument('p_limit', 'it must be from 1 to 1000');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_check_limit(integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_check_limit(integer) IS 'Refuses a limit outside 1 to 1000.';
