-- The triggers of flow_event_log: projection, shape guard, append-only guard.
-- The shape guard is a condition: its function runs only for a row that is refused, so an ordinary
-- insert pays for the comparison alone. The condition is planned anew for every statement, hence
-- spelled out in built-in functions; flow_event_refusal says the same and finds the words.
CREATE TRIGGER flow_event_log_guard
    BEFORE INSERT ON flow_event_log
    FOR EACH ROW
    WHEN (NEW.run_id IS NULL OR NEW.sequence IS NULL OR NEW.sequence < NEW.event_count
          OR NEW.event_count < 1 OR NEW.event_count IS NULL
          OR NEW.transaction_id IS NULL OR NEW.schema_version < 1 OR NEW.recorded_at IS NULL
          -- beyond these years drivers have no times
          OR NEW.recorded_at < '0001-01-01 00:00:00+00'
          OR NEW.recorded_at >= '10000-01-01 00:00:00+00'
          OR NEW.payload IS NULL
          OR CASE
                 WHEN NEW.event_type IS NULL
                     THEN NEW.subject_id IS NOT NULL OR NEW.due_at IS NOT NULL
                          OR NEW.event_id IS NOT NULL OR NEW.schema_version IS NOT NULL
                          OR NEW.sequence = NEW.event_count
                          OR octet_length(NEW.payload::text) > 1048576
                          -- what flow_unbundle needs to come to an end whatever the items are
                          OR CASE WHEN json_typeof(NEW.payload) = 'array'
                                 THEN json_array_length(NEW.payload) <> NEW.event_count
                                 ELSE true
                             END
                          OR strpos(NEW.payload::text, '\u') > 0
                             AND (strpos(NEW.payload::text, '\u0000') > 0
                                  OR strpos(NEW.payload::text, '\ud') > 0
                                  OR strpos(NEW.payload::text, '\uD') > 0)
                 ELSE NEW.event_count <> 1
                      OR NEW.due_at < '0001-01-01 00:00:00+00'
                      OR NEW.due_at >= '10000-01-01 00:00:00+00'
                      OR octet_length(NEW.event_type) NOT BETWEEN 1 AND 200
                      OR (NEW.subject_id IS NULL AND NOT starts_with(NEW.event_type, 'run_'))
                      OR octet_length(NEW.subject_id) > 2048 OR btrim(NEW.subject_id) = ''
                      OR (NEW.due_at IS NULL AND NEW.event_type = 'wait_created')
                      OR json_typeof(NEW.payload) <> 'object'
                      OR octet_length(NEW.payload::text) > 1048576
             END)
    EXECUTE FUNCTION flow_refuse_event();

CREATE TRIGGER flow_event_log_project
    AFTER INSERT ON flow_event_log
    REFERENCING NEW TABLE AS new_events
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_project_events();

CREATE TRIGGER flow_event_log_append_only
    BEFORE UPDATE OR DELETE ON flow_event_log
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

CREATE TRIGGER flow_event_log_no_truncate
    BEFORE TRUNCATE ON flow_event_log
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

COMMENT ON TRIGGER flow_event_log_guard ON flow_event_log
    IS 'Refuses a row of the wrong shape without showing it.';
COMMENT ON TRIGGER flow_event_log_project ON flow_event_log
    IS 'Keeps flow_runs, flow_active_hooks and scheduled_wakeups.';
COMMENT ON TRIGGER flow_event_log_append_only ON flow_event_log IS 'History is append-only.';
COMMENT ON TRIGGER flow_event_log_no_truncate ON flow_event_log IS 'History is append-only.';
