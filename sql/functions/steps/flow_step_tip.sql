-- flow_step_tip: the newest event of one step, and whether a cancellation request came after it.
-- Arguments: p_run_id, p_step_id. No row when the step was never created.
-- A step that is at work began a short while ago, so the search from the end of the stream is over
-- soon, however long the history is.
-- flow_step_awaits: whether that is the start of this attempt, so that its outcome is waited for.
-- Locks: none; who decides by the answer holds the run lock. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_step_tip(p_run_id text, p_step_id text)
RETURNS TABLE (
    event_type text, attempt integer, sequence bigint, recorded_at timestamptz, is_cancelled boolean
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tip record;
BEGIN
    SELECT e.event_type, e.sequence, l.recorded_at,
           CASE WHEN e.event_type = 'step_started'
                -- whatever stands there: no attempt that anybody names is more than this
                THEN CASE WHEN a.number ~ '^[0-9]+$' AND length(a.number) < 10
                          THEN a.number::integer END
           END AS attempt
      INTO v_tip
      FROM flow_event_log AS l
     CROSS JOIN LATERAL (
            SELECT l.event_type, l.sequence, l.payload
             WHERE l.event_type LIKE 'step\_%' AND l.subject_id = p_step_id
            UNION ALL
            (SELECT u.event_type, u.sequence, u.payload
               FROM flow_unbundle(l.payload, l.sequence, l.event_count) AS u
              WHERE l.event_type IS NULL AND u.subject_id = p_step_id
              ORDER BY u.sequence DESC
              LIMIT 1)) AS e
     CROSS JOIN LATERAL (
            SELECT CASE WHEN e.event_type = 'step_started'
                        THEN flow_json_get(e.payload, 'attempt')::text END AS number) AS a
     WHERE l.run_id = p_run_id
     ORDER BY l.sequence DESC
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT v_tip.event_type, v_tip.attempt, v_tip.sequence, v_tip.recorded_at,
           EXISTS (SELECT FROM flow_event_log AS c
                    WHERE c.run_id = p_run_id AND c.sequence > v_tip.sequence
                      AND c.event_type = 'run_cancellation_requested');
END
$$;

CREATE FUNCTION flow_step_awaits(p_run_id text, p_step_id text, p_attempt integer) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM flow_step_tip(p_run_id, p_step_id) AS t
         WHERE t.event_type = 'step_started' AND t.attempt = p_attempt);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_step_tip(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_step_awaits(text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_step_tip(text, text) IS 'The newest event of one step.';
COMMENT ON FUNCTION flow_step_awaits(text, text, integer)
    IS 'Whether the outcome of an attempt is waited for.';
