-- flow_event_flags: which projections an event touches, as bits; an event of another type touches
-- none but the head of its run.
--    1  may settle a delayed retry        2  sets a deadline
--    4  creates a hook                    8  settles a wait or a hook
--   16  asks for cancellation            32  ends the run
--   64  creates the run                 128  starts the run
--  256  sets attributes of the run    512  says that a hook was not created
-- Arguments: p_event_type, null for a bundle of step events; p_has_due (whether it carries a
--   deadline). The frequent types come first.
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_flags(p_event_type text, p_has_due boolean) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'step_created' THEN 0
    WHEN 'step_started' THEN 1
    WHEN 'step_completed' THEN 1
    WHEN 'wait_created' THEN 2
    WHEN 'wait_completed' THEN 8
    WHEN 'wait_cancelled' THEN 8
    WHEN 'run_created' THEN 64
    WHEN 'run_started' THEN 128
    WHEN 'run_completed' THEN 32
    WHEN 'step_retrying' THEN CASE WHEN p_has_due THEN 3 ELSE 1 END
    WHEN 'hook_created' THEN CASE WHEN p_has_due THEN 6 ELSE 4 END
    WHEN 'hook_received' THEN 8
    WHEN 'hook_disposed' THEN 8
    WHEN 'hook_conflicted' THEN 512
    WHEN 'step_failed' THEN 1
    WHEN 'step_non_retryable' THEN 1
    WHEN 'step_cancelled' THEN 1
    WHEN 'run_cancellation_requested' THEN 16
    WHEN 'run_attributes_set' THEN 256
    ELSE CASE
        WHEN p_event_type IS NULL THEN 1
        WHEN flow_terminal_status(p_event_type) IS NULL THEN 0
        ELSE 32
    END
END;

CREATE FUNCTION flow_wakeup_kind(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN starts_with(p_event_type, 'wait_') THEN 'wait'
    WHEN starts_with(p_event_type, 'hook_') THEN 'hook_expiry'
    ELSE 'step_retry'
END;

REVOKE EXECUTE ON FUNCTION flow_event_flags(text, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_wakeup_kind(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_flags(text, boolean)
    IS 'Which projections an event touches, as bits.';
COMMENT ON FUNCTION flow_wakeup_kind(text)
    IS 'Kind of wakeup that a wait, hook or step event is about.';
