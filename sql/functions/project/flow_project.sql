-- flow_project: brings every projection up to date with newly stored events.
-- Arguments: p_events, events of any number of runs, stored by this transaction. Called by the
--   trigger on flow_event_log; a store that cannot have the trigger may call it after its own
--   insert.
-- Locks, in order: run locks when they are free (a direct writer then counts as their holder;
--   it must not wait for them, because it has inserted already), token locks, rows.
-- SQLSTATEs: WF004, WF005, WF009. Callers: internal.
CREATE FUNCTION flow_project(p_events flow_event_fact[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_changes flow_run_change[];
    v_run_ids text[];
    v_flags integer;
    v_broken boolean;
    v_change flow_run_change;
BEGIN
    SELECT bit_or(e.flags) INTO v_flags FROM unnest(p_events) AS e;
    IF v_flags & 224 = 0 THEN
        -- nothing begins or ends: the usual append, summed up with less work
        SELECT array_agg(ROW(s.run_id, s.first_sequence, s.last_sequence, s.flags, s.recorded_at,
                   NULL, NULL, NULL, s.is_broken)::flow_run_change),
               array_agg(s.run_id), bool_or(s.is_broken)
          INTO v_changes, v_run_ids, v_broken
          FROM (SELECT e.run_id, min(e.sequence - e.event_count + 1) AS first_sequence,
                       max(e.sequence) AS last_sequence, max(e.recorded_at) AS recorded_at,
                       bit_or(e.flags) AS flags,
                       min(e.sequence) = 1
                           OR max(e.sequence) - min(e.sequence - e.event_count)
                              <> sum(e.event_count)
                           AS is_broken
                  FROM unnest(p_events) AS e
                 GROUP BY e.run_id) AS s;
    ELSIF v_flags = 64 THEN
        -- runs begin and nothing else, one event each: a thousand groups would spill to disk
        SELECT array_agg(ROW(e.run_id, e.sequence, e.sequence, 64, e.recorded_at, e.payload,
                   e.recorded_at, NULL, e.sequence <> 1)::flow_run_change),
               array_agg(e.run_id), bool_or(e.sequence <> 1)
          INTO v_changes, v_run_ids, v_broken
          FROM unnest(p_events) AS e;
    ELSE
        SELECT array_agg(ROW(s.run_id, s.first_sequence, s.last_sequence, s.flags, s.recorded_at,
                   s.create_payload, s.created_at, s.terminal_status, s.is_broken)
                   ::flow_run_change),
               array_agg(s.run_id), bool_or(s.is_broken)
          INTO v_changes, v_run_ids, v_broken
          FROM (SELECT f.run_id, min(f.sequence - f.event_count + 1) AS first_sequence,
                       max(f.sequence) AS last_sequence, max(f.recorded_at) AS recorded_at,
                       bit_or(f.flags) AS flags,
                       (array_agg(f.payload) FILTER (WHERE f.flags = 64))[1] AS create_payload,
                       min(f.recorded_at) FILTER (WHERE f.flags = 64) AS created_at,
                       max(flow_terminal_status(f.event_type)) FILTER (WHERE f.flags = 32)
                           AS terminal_status,
                       max(f.sequence) - min(f.sequence - f.event_count)
                               <> sum(f.event_count)
                           OR bool_or((f.flags = 64) <> (f.sequence - f.event_count = 0))
                           OR coalesce(min(f.sequence) FILTER (WHERE f.flags = 32)
                                       < max(f.sequence), false) AS is_broken
                  FROM unnest(p_events) AS f
                 GROUP BY f.run_id) AS s;
    END IF;
    IF v_broken THEN
        FOREACH v_change IN ARRAY v_changes LOOP
            IF v_change.is_broken THEN
                PERFORM flow_refuse_projection(v_change);
            END IF;
        END LOOP;
    END IF;

    PERFORM pg_try_advisory_xact_lock(flow_run_key(i.run_id)) FROM unnest(v_run_ids) AS i (run_id);
    IF v_flags & 572 <> 0 THEN
        PERFORM flow_project_hooks(p_events, v_flags);
    END IF;
    IF v_flags & 59 <> 0 THEN
        PERFORM flow_project_wakeups(p_events, v_flags, v_run_ids);
    END IF;
    PERFORM flow_project_runs(v_changes, v_flags = 64);
    IF v_flags & 256 <> 0 THEN
        PERFORM flow_project_attributes(p_events);
    END IF;
    IF v_flags & 32 <> 0 THEN
        PERFORM flow_tell_ended(ARRAY(
            SELECT c.run_id FROM unnest(v_changes) AS c WHERE c.terminal_status IS NOT NULL));
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project(flow_event_fact[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project(flow_event_fact[])
    IS 'Brings every projection up to date with newly stored events.';
