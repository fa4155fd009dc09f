-- What an element of an append does to hooks.
--   flow_append_open_hooks(element)             its hook_created events whose hooks stay open
--   flow_append_settles(elements, run, hook)    whether one of the elements settles that hook
-- Arguments: as named. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_append_open_hooks(p_element flow_append_element) RETURNS flow_append_event[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- one pass and one sort, whatever the number of hooks
RETURN ARRAY(
    SELECT o.event
      FROM (SELECT v AS event, v.event_position, v.event_type,
                   max(v.event_position) FILTER (WHERE flow_clears(v.event_type)) OVER ()
                       AS cleared_at,
                   max(v.event_position) FILTER (
                       WHERE v.event_type IN ('hook_received', 'hook_disposed'))
                       OVER (PARTITION BY v.subject_id COLLATE "C") AS settled_at
              FROM unnest((p_element).events) AS v
             WHERE v.event_type IN ('hook_created', 'hook_received', 'hook_disposed')
                OR flow_clears(v.event_type)) AS o
     WHERE o.event_type = 'hook_created'
       AND o.event_position > coalesce(greatest(o.cleared_at, o.settled_at), 0)
     ORDER BY o.event_position);

CREATE FUNCTION flow_append_settles(
    p_elements flow_append_element[], p_run_id text, p_hook_id text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN EXISTS (
    SELECT FROM unnest(p_elements) AS e
     CROSS JOIN LATERAL unnest(e.events) AS v
     WHERE e.run_id = p_run_id
       AND (flow_clears(v.event_type)
            OR (v.subject_id = p_hook_id AND v.event_type IN ('hook_received', 'hook_disposed'))));

REVOKE EXECUTE ON FUNCTION flow_append_open_hooks(flow_append_element) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_settles(flow_append_element[], text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_open_hooks(flow_append_element)
    IS 'The hook_created events of an element whose hooks stay open.';
COMMENT ON FUNCTION flow_append_settles(flow_append_element[], text, text)
    IS 'Whether one of the elements settles a hook.';
