-- flow_append_suspects: the wanted hooks, usually none, that another one may stand in the way of:
-- they have something in common with each other or with an active hook. One look at all wanted
-- hooks, so that the cost of an append grows with the number of its hooks.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns one row a hook, in the
-- order in which they are wanted. Locks: none; the caller holds run and token locks.
-- SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_suspects(
    p_elements flow_append_element[], p_verdicts flow_append_verdict[]
) RETURNS TABLE (ordinal integer, hook_id text, token text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT s.ordinal, s.hook_id, s.token
      FROM (SELECT w.ordinal, w.event_position, w.hook_id, w.token,
                   o.run_id IS NOT NULL AS is_active,
                   count(*) OVER (PARTITION BY w.token) AS of_token,
                   count(*) OVER (PARTITION BY w.ordinal, w.hook_id) AS of_hook
              FROM (SELECT e.ordinal, e.run_id, v.event_position,
                           v.subject_id COLLATE "C" AS hook_id, v.token COLLATE "C" AS token
                      FROM unnest(p_elements) AS e
                     CROSS JOIN LATERAL unnest(flow_append_open_hooks(e)) AS v
                     WHERE e.has_token AND (p_verdicts[e.ordinal]).outcome = 'appended') AS w
              LEFT JOIN LATERAL (
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.token = w.token AND (h.run_id <> w.run_id OR h.hook_id <> w.hook_id)
                       AND NOT (h.run_id = w.run_id AND (h.run_id, h.hook_id) IN (
                            -- settled by the same element: in nobody's way. Not correlated, so that
                            -- it is computed once and hashed
                            SELECT e.run_id COLLATE "C", v.subject_id COLLATE "C"
                              FROM unnest(p_elements) AS e
                             CROSS JOIN LATERAL unnest(e.events) AS v
                             WHERE v.event_type IN ('hook_received', 'hook_disposed')
                               AND v.subject_id IS NOT NULL AND e.run_id IS NOT NULL
                               AND (p_verdicts[e.ordinal]).outcome = 'appended'))
                    UNION ALL
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.run_id = w.run_id AND h.hook_id = w.hook_id AND h.token <> w.token
                     LIMIT 1) AS o ON true) AS s
     WHERE s.is_active OR s.of_token > 1 OR s.of_hook > 1
     ORDER BY s.ordinal, s.event_position;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_suspects(flow_append_element[], flow_append_verdict[])
    FROM PUBLIC;
COMMENT ON FUNCTION flow_append_suspects(flow_append_element[], flow_append_verdict[])
    IS 'The wanted hooks that another one may stand in the way of.';
