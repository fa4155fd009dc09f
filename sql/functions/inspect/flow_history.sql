-- flow_history: a page of a run's events.
-- Arguments: p_run_id; p_after, events beyond this sequence; p_limit, 1 to 1000.
-- Returns the events in order; payload is the event without its type, its text as it was stored;
--   schema_version null means that the envelope had none, which is read as 1.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_history(
    p_run_id text, p_after bigint DEFAULT 0, p_limit integer DEFAULT 1000
) RETURNS TABLE (
    run_id text, sequence bigint, event_id uuid, event_type text, payload text,
    recorded_at timestamptz, schema_version smallint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_check_exists(p_run_id);
    RETURN QUERY
    SELECT l.run_id, e.sequence, coalesce(l.event_id, flow_event_id(l.run_id, e.sequence)),
           e.event_type, e.payload::text, l.recorded_at, l.schema_version
      FROM (SELECT f.run_id, f.sequence, f.event_id, f.event_type, f.payload, f.recorded_at,
                   f.schema_version, f.event_count
              FROM flow_event_log AS f
             WHERE f.run_id = p_run_id AND f.sequence > coalesce(p_after, 0)
             ORDER BY f.sequence
             LIMIT p_limit) AS l
     CROSS JOIN LATERAL (
            SELECT l.sequence, l.event_type, l.payload WHERE l.event_type IS NOT NULL
            UNION ALL
            SELECT u.sequence, u.event_type, u.payload
              FROM flow_unbundle(l.payload, l.sequence, l.event_count) AS u
             WHERE l.event_type IS NULL) AS e
     WHERE e.sequence > coalesce(p_after, 0)
     ORDER BY e.sequence
     LIMIT p_limit;
END
$$;

-- Raises WF001 unless the run exists.
CREATE FUNCTION flow_check_exists(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_history(text, bigint, integer) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_exists(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_history(text, bigint, integer) IS 'A page of a run''s events.';
COMMENT ON FUNCTION flow_check_exists(text) IS 'Raises WF001 unless the run exists.';
