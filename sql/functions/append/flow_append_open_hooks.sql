-- flow_append_open_hooks: the hook_created events of an element of an append whose hooks stay open.
-- Arguments: p_element. Locks: none. SQLSTATEs: none. Callers: internal.
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

REVOKE EXECUTE ON FUNCTION flow_append_open_hooks(flow_append_element) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_open_hooks(flow_append_element)
    IS 'The hook_created events of an element whose hooks stay open.';
