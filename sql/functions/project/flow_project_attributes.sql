-- flow_project_attributes: brings flow_runs.attributes up to date with newly stored events.
-- Arguments: p_events, all of them. Attributes of several events of a run are set in their order; a
--   null takes one away.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: WF009 what is set is not an object, or
--   holds what jsonb cannot. Callers: internal.
CREATE FUNCTION flow_project_attributes(p_events flow_event_fact[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_event flow_event_fact;
BEGIN
    FOREACH v_event IN ARRAY p_events LOOP
        IF v_event.event_type = 'run_attributes_set'
            AND (coalesce(json_typeof(flow_json_get(v_event.payload, 'attributes')), '') <> 'object'
                 OR strpos(flow_json_shield(v_event.payload::text), E'\x7f3') > 0)
        THEN
            PERFORM flow_raise_transition(v_event.run_id,
                'its attributes are not an object of plain texts, numbers, true and false');
        END IF;
    END LOOP;
    UPDATE flow_runs AS r
       SET attributes = nullif(
               jsonb_strip_nulls(coalesce(r.attributes, '{}') || c.attributes), '{}')
      FROM (SELECT e.run_id, jsonb_object_agg(a.key, a.value ORDER BY e.sequence) AS attributes
              FROM unnest(p_events) AS e
             CROSS JOIN LATERAL json_each(e.payload -> 'attributes') AS a
             WHERE e.event_type = 'run_attributes_set'
             GROUP BY e.run_id) AS c
     WHERE r.run_id = c.run_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_attributes(flow_event_fact[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_attributes(flow_event_fact[])
    IS 'Brings flow_runs.attributes up to date with newly stored events.';
