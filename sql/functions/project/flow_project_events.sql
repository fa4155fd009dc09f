-- flow_project_events: trigger function of flow_event_log; hands the stored events to flow_project.
-- Statement level, so that its cost is per append and not per event. It is right for every writer,
-- also for one that inserts directly.
-- Locks and SQLSTATEs: those of flow_project. Callers: the trigger.
CREATE FUNCTION flow_project_events() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_events flow_event_fact[];
BEGIN
    SELECT array_agg(ROW(n.run_id, n.sequence, n.event_type, n.subject_id, n.due_at,
               CASE WHEN n.event_type IN ('run_created', 'hook_created', 'run_attributes_set')
                    THEN n.payload END,
               n.recorded_at, n.event_count,
               flow_event_flags(n.event_type, n.due_at IS NOT NULL))::flow_event_fact)
      INTO v_events
      FROM new_events AS n;
    IF v_events IS NOT NULL THEN
        PERFORM flow_project(v_events);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_events() FROM PUBLIC;
COMMENT ON FUNCTION flow_project_events() IS 'Trigger function: projects newly stored events.';
