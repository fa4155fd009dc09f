-- flow_append_read: takes a batch of appends apart.
-- Arguments: p_batch, the array that flow_append_many takes; p_shielded, whether its text went
--   through flow_json_shield.
-- Returns one element a run with its events; what can never be stored is marked, not raised.
-- Locks: none. SQLSTATEs: class 22 when a value has the wrong JSON type: the caller then reads the
--   elements one by one to find the one at fault. Callers: internal.
CREATE FUNCTION flow_append_read(p_batch json, p_shielded boolean) RETURNS flow_append_element[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_elements flow_append_element[];
    v_is_fine boolean;
BEGIN
    IF NOT p_shielded THEN
        -- most batches have nothing wrong with them: look for the words only when something has
        SELECT array_agg(ROW(x.ordinal, x.run_id, x.expected, x.epoch, x.release,
                   coalesce(x.queue, 'default'), s.event_count, false, s.has_token, s.has_link,
                   NULL, s.events)::flow_append_element),
               bool_and((s.is_fine AND octet_length(x.run_id) BETWEEN 1 AND 255
                         AND x.queue IS NULL
                         AND CASE WHEN x.release IS NULL THEN s.event_count > 0
                                  ELSE x.epoch IS NOT NULL END) IS TRUE)
          INTO v_elements, v_is_fine
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, ordinal)
         CROSS JOIN LATERAL (
            SELECT count(*)::integer AS event_count,
                   coalesce(bool_or(v.type = 'hook_created'), false) AS has_token,
                   coalesce(bool_or(v.type = 'child_operation_linked'), false) AS has_link,
                   coalesce(bool_and((
                       octet_length(v.type) BETWEEN 1 AND 200
                       AND CASE WHEN starts_with(v.type, 'run_') THEN v.type <> 'run_created'
                                ELSE v.subject IS NOT NULL END
                       AND (v.subject IS NULL OR octet_length(v.subject) <= 2048
                                                 AND btrim(v.subject) <> '')
                       AND (v.payload IS NULL OR json_typeof(v.payload) = 'object'
                                                 AND octet_length(v.payload::text) <= 1048512)
                       AND CASE
                               WHEN v.due_in_us IS NOT NULL
                                   THEN v.due_at IS NULL AND flow_due_member(v.type) IS NOT NULL
                                        AND v.due_in_us BETWEEN 0 AND 250000000000000000
                               WHEN v.type = 'wait_created' THEN v.due_at IS NOT NULL
                               ELSE true
                           END
                       AND (v.type <> 'hook_created' OR coalesce(v.payload ->> 'token', '') <> '')
                   ) IS TRUE), true)
                   AND coalesce(min(v.ordinal) FILTER (
                           WHERE starts_with(v.type, 'run_')
                             AND flow_terminal_status(v.type) IS NOT NULL), count(*)) = count(*)
                       AS is_fine,
                   array_agg(ROW(v.ordinal, v.type, v.subject,
                       CASE WHEN v.due_at IS NOT NULL THEN flow_deadline(v.due_at) END,
                       v.due_in_us, coalesce(v.payload, '{}'), v.event_id,
                       CASE WHEN v.type = 'hook_created' THEN v.payload ->> 'token' END,
                       CASE WHEN v.type = 'child_operation_linked'
                           THEN v.payload -> 'child' ->> 'flow_run_id' END)::flow_append_event)
                       AS events
              FROM ROWS FROM (json_to_recordset(x.events) AS (
                       type text, subject text, due_at text, due_in_us bigint, payload json,
                       event_id uuid))
                   WITH ORDINALITY AS v (type, subject, due_at, due_in_us, payload, event_id,
                       ordinal)
         ) AS s;
        IF coalesce(v_is_fine, true) THEN
            RETURN v_elements;
        END IF;
    END IF;
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
               coalesce(flow_text_unshield(p_shielded, x.queue), 'default') AS queue, x.events,
               x.ordinal
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, ordinal)
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
                   v.payload, v.event_id, v.token, v.linked_run_id)::flow_append_event) AS events
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

REVOKE EXECUTE ON FUNCTION flow_append_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_read(json, boolean) IS 'Takes a batch of appends apart.';
