-- flow_events: the event streams as everybody reads them, one row an event; and the way in
-- for writers of another make.
CREATE VIEW flow_events AS
SELECT l.run_id, l.sequence,
       coalesce(l.event_id, flow_event_id(l.run_id, l.sequence)) AS event_id,
       l.event_type, l.subject_id, l.due_at, l.payload, l.recorded_at, l.transaction_id,
       l.schema_version
  FROM flow_event_log AS l
 WHERE l.event_type IS NOT NULL
UNION ALL
SELECT l.run_id, e.sequence, flow_event_id(l.run_id, e.sequence),
       e.event_type COLLATE "C", e.subject_id COLLATE "C", NULL::timestamptz, e.payload,
       l.recorded_at, l.transaction_id, NULL::smallint
  FROM flow_event_log AS l
 CROSS JOIN LATERAL flow_unbundle(l.payload, l.sequence, l.event_count) AS e
 WHERE l.event_type IS NULL;

ALTER VIEW flow_events ALTER COLUMN recorded_at SET DEFAULT flow_now();
ALTER VIEW flow_events ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

-- Stores the event of a row that is inserted into the view.
-- Locks and SQLSTATEs: those of the triggers of flow_event_log. Callers: the trigger.
CREATE FUNCTION flow_insert_event() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NEW.event_type IS NULL THEN
        PERFORM flow_raise_transition(NEW.run_id, 'an event has no type');
    END IF;
    INSERT INTO flow_event_log (run_id, sequence, event_id, event_type, subject_id, due_at, payload,
        recorded_at, transaction_id, schema_version)
    VALUES (NEW.run_id, NEW.sequence, NEW.event_id, NEW.event_type, NEW.subject_id, NEW.due_at,
        NEW.payload, NEW.recorded_at, NEW.transaction_id, NEW.schema_version);
    RETURN NEW;
END
$$;

CREATE TRIGGER flow_events_insert
    INSTEAD OF INSERT ON flow_events
    FOR EACH ROW
    EXECUTE FUNCTION flow_insert_event();

CREATE TRIGGER flow_events_append_only
    BEFORE UPDATE OR DELETE ON flow_events
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

-- Without it an UPDATE or DELETE would be refused as something that views cannot do.
CREATE TRIGGER flow_events_no_change
    INSTEAD OF UPDATE OR DELETE ON flow_events
    FOR EACH ROW
    EXECUTE FUNCTION flow_refuse_change();

REVOKE EXECUTE ON FUNCTION flow_insert_event() FROM PUBLIC;
COMMENT ON FUNCTION flow_insert_event()
    IS 'Trigger function: stores an event that is inserted into flow_events.';
COMMENT ON VIEW flow_events IS 'The event streams of all runs, one row an event.';
COMMENT ON COLUMN flow_events.run_id IS 'The run whose stream this is.';
COMMENT ON COLUMN flow_events.sequence IS 'Place in the stream, from 1, without gaps.';
COMMENT ON COLUMN flow_events.event_id
    IS 'Identity of the event; derived from run and sequence when the writer gave none.';
COMMENT ON COLUMN flow_events.event_type
    IS 'What happened, in snake case, for example step_completed.';
COMMENT ON COLUMN flow_events.subject_id
    IS 'The step, wait, hook, link or progress id the event is about; null for events of the run '
       'itself.';
COMMENT ON COLUMN flow_events.due_at
    IS 'Deadline the event sets (wait, retry, hook expiry), rounded up to microseconds.';
COMMENT ON COLUMN flow_events.payload
    IS 'The event object without its type member, text kept verbatim. Holds hook tokens and user '
       'data.';
COMMENT ON COLUMN flow_events.recorded_at
    IS 'Database time of the append; equal for all events of one append.';
COMMENT ON COLUMN flow_events.transaction_id
    IS 'Transaction that wrote the row; lets a reader follow commits without gaps.';
COMMENT ON COLUMN flow_events.schema_version
    IS 'Envelope schema version as on the wire; null means that it was absent and is read as 1.';
