-- Trigger functions that refuse what must not happen to flow_event_log.
--   flow_refuse_event()    a row whose shape is wrong; the table's own constraints would refuse it
--                          too, but their error shows the row, and with it tokens and payloads
--   flow_refuse_change()   UPDATE, DELETE or TRUNCATE: the table is append-only
-- Locks: none. SQLSTATEs: WF009, WF012. Callers: the triggers.
CREATE FUNCTION flow_refuse_event() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF octet_length(NEW.payload::text) > 1048576 THEN
        PERFORM flow_raise_too_large(NEW.run_id, coalesce(NEW.event_type, 'bundled'),
            octet_length(NEW.payload::text));
    ELSIF NEW.event_type IS NULL AND NEW.event_count > 1 THEN
        PERFORM flow_raise_transition(NEW.run_id, 'a bundle of step events, which is what a row '
            'without a type is, needs an array of as many items as it has events, no escaped '
            'NUL or surrogate in it, a sequence that leaves room for them, and no subject, '
            'deadline, id or schema version');
    END IF;
    PERFORM flow_raise_transition(NEW.run_id, coalesce(
        flow_event_refusal(NEW.event_type, NEW.subject_id, NEW.due_at IS NOT NULL, NEW.payload),
        'an event needs a sequence from 1, a transaction id, and times of the years 1 '
        'to 9999'));
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_refuse_change() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise_transition(NULL,
        format('%s on %I is refused: history is append-only', lower(TG_OP), TG_TABLE_NAME));
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_raise_too_large(p_run_id text, p_event_type text, p_bytes integer)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF012',
        format('run %s: the payload of a %s event has %s bytes, at most 1048576 are stored',
            p_run_id, flow_event_name(p_event_type), p_bytes),
        jsonb_build_object('run_id', p_run_id, 'event_type', flow_event_name(p_event_type),
            'bytes', p_bytes, 'max_bytes', 1048576),
        'Store large values elsewhere and pass a reference.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_refuse_event() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_refuse_change() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_too_large(text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_refuse_event() IS 'Trigger function: refuses a row of the wrong shape.';
COMMENT ON FUNCTION flow_refuse_change() IS 'Trigger function: refuses changes of history.';
COMMENT ON FUNCTION flow_raise_too_large(text, text, integer) IS 'Raises WF012.';
