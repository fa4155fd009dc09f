-- flow_append_examine: takes a batch of appends apart that may have something wrong with it, and
-- says what; one row an event, no bundles.
-- Arguments, result, SQLSTATEs: as flow_append_read, which looks whether this is needed.
-- Locks: none. Callers: internal.
CREATE FUNCTION flow_append_examine(p_batch json, p_shielded boolean) RETURNS flow_append_element[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_elements flow_append_element[];
BEGIN
    SELECT array_agg(ROW(b.ordinal, b.run_id, b.expected, b.epoch, b.release, b.queue,
               coalesce(s.event_count, 0), coalesce(s.creates, false),
               coalesce(s.has_token, false), coalesce(s.has_link, false),
               CASE
                   WHEN NOT r.has_run_id THEN json_build_object('sqlstate', 'WF013',
                       'reason', 'a run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + -')
                   WHEN r.reason IS NOT NULL
                       THEN json_build_object('sqlstate', 'WF009', 'reason', r.reason)
                   ELSE s.refusal
               END,
               s.events)::flow_append_element)
      INTO v_elements
      FROM (
        SELECT flow_text_unshield(p_shielded, x.run_id) AS run_id, x.expected, x.epoch, x.release,
               coalesce(flow_text_unshield(p_shielded, x.queue), 'default') AS queue,
               CASE WHEN x.steps IS NULL THEN x.events
                    ELSE flow_append_spread(x.events, x.steps, coalesce(x.before, 0)) END AS events,
               x.ordinal
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json, steps json, before integer))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, steps, before,
                   ordinal)
        OFFSET 0
      ) AS b
     CROSS JOIN LATERAL (
        SELECT count(*)::integer AS event_count,
               bool_or(v.event_type = 'run_created') AS creates,
               bool_or(v.token IS NOT NULL) AS has_token,
               bool_or(v.linked_run_id IS NOT NULL) AS has_link,
               (array_agg(v.refusal) FILTER (WHERE v.refusal IS NOT NULL))[1] AS refusal,
               max(v.event_position) FILTER (WHERE v.event_type = 'run_created') AS created_at,
               min(v.event_position) FILTER (WHERE flow_terminal_status(v.event_type) IS NOT NULL)
                   AS ended_at,
               array_agg(ROW(v.event_position, v.event_type, v.subject_id, v.due_at, v.due_in_us,
                   v.payload, v.event_id, v.token, v.linked_run_id, 1)::flow_append_event)
                   AS events
          FROM flow_append_read_events(b.events, p_shielded) AS v
      ) AS s
     CROSS JOIN LATERAL (
        SELECT CASE WHEN s.creates THEN flow_run_id_is_valid(b.run_id)
                    ELSE coalesce(octet_length(b.run_id) BETWEEN 1 AND 255, false)
               END AS has_run_id,
               CASE
                   WHEN octet_length(b.queue) > 255 OR btrim(b.queue) = ''
                       THEN 'a queue name has 1 to 255 bytes and is not blank'
                   WHEN b.release IS NOT NULL AND b.epoch IS NULL
                       THEN 'a release needs the epoch of the lease'
                   WHEN b.release IS NULL AND s.event_count = 0
                       THEN 'there is neither an event nor a release'
                   WHEN s.created_at > 1 THEN 'run_created can only be the first event of a run'
                   WHEN s.ended_at < s.event_count THEN 'an event follows the end of the run'
                   WHEN s.creates
                       THEN flow_spec_refusal(flow_json_get((s.events[1]).payload, 'spec'))
               END AS reason
      ) AS r;
    RETURN v_elements;
END
$$;

-- The events of an element whose steps came as a bundle, as one array.
CREATE FUNCTION flow_append_spread(p_events json, p_steps json, p_before integer) RETURNS json
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (
        SELECT json_agg(m.event ORDER BY m.place, m.n)
          FROM (SELECT CASE WHEN a.n <= p_before THEN 0 ELSE 2 END AS place, a.n, a.event
                  FROM json_array_elements(p_events) WITH ORDINALITY AS a (event, n)
                UNION ALL
                SELECT 1, u.sequence, json_build_object('type',
                           CASE WHEN json_array_length(u.item) = 2
                                THEN nullif(u.event_type, 'step_unreadable') END,
                           'subject', u.subject_id, 'payload', u.payload)
                  FROM ROWS FROM (flow_unbundle(p_steps, 0, 0), json_array_elements(p_steps))
                       AS u (sequence, event_type, subject_id, payload, item)) AS m);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_examine(json, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_spread(json, json, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_examine(json, boolean)
    IS 'Takes a batch of appends apart and says what is wrong with it.';
COMMENT ON FUNCTION flow_append_spread(json, json, integer)
    IS 'The events of an element whose steps came as a bundle.';
