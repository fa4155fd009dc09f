-- flow_history: a page of a run's events, as stored.
-- Arguments: p_run_id; p_after, the last sequence already seen; p_limit, 1 to 1000.
-- Locks: none. SQLSTATEs: WF001 unknown run; WF010 limit out of range. Callers: reader, client.
CREATE FUNCTION flow_history(p_run_id text, p_after bigint DEFAULT 0, p_limit integer DEFAULT 1000)
RETURNS TABLE (
    run_id text, sequence bigint, event_id uuid, event_type text, payload text,
    recorded_at timestamptz, schema_version smallint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF NOT EXISTS (SELECT FROM flow_runs AS r WHERE r.run_id = p_run_id) THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
    RETURN QUERY
    SELECT e.run_id, e.sequence, e.event_id, e.event_type, e.payload::text, e.recorded_at,
           e.schema_version
      FROM flow_events AS e
     WHERE e.run_id = p_run_id AND e.sequence > p_after
     ORDER BY e.sequence
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_history(text, bigint, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_history(text, bigint, integer) IS 'A page of a run''s events, as stored.';
