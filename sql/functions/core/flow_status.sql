-- The words of a run's life, in one place.
--   flow_terminal_status(event type)   status that the event ends a run with, else null
--   flow_is_terminal(status)           whether a status is final
--   flow_clears(event type)            whether the event drops every open hook and wakeup of its
--   run
-- Arguments: an event type or a status. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_terminal_status(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'run_completed' THEN 'completed'
    WHEN 'run_failed' THEN 'failed'
    WHEN 'run_cancelled' THEN 'cancelled'
    WHEN 'run_timed_out' THEN 'failed'
    WHEN 'run_retry_exhausted' THEN 'failed'
    WHEN 'run_host_shutdown' THEN 'failed'
    WHEN 'run_continued_as_new' THEN 'continued_as_new'
END;

CREATE FUNCTION flow_is_terminal(p_status text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_status IN ('completed', 'failed', 'cancelled', 'continued_as_new');

CREATE FUNCTION flow_clears(p_event_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_event_type IN ('run_cancellation_requested', 'run_completed', 'run_failed',
    'run_cancelled', 'run_timed_out', 'run_retry_exhausted', 'run_host_shutdown',
    'run_continued_as_new');

REVOKE EXECUTE ON FUNCTION flow_terminal_status(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_is_terminal(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_clears(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminal_status(text) IS 'Status that a terminal event gives its run.';
COMMENT ON FUNCTION flow_is_terminal(text) IS 'Whether a run status is final.';
COMMENT ON FUNCTION flow_clears(text)
    IS 'Whether an event drops all open hooks and wakeups of its run.';
