-- flow_append_read_events: takes the events of one element of an append batch apart.
-- Arguments: p_events, array of {"type", "subject"?, "due_at"?, "due_in_us"?, "payload",
--   "event_id"?}; p_shielded, whether the text went through flow_json_shield.
-- refusal is null, or says as {"sqlstate", "reason", ...} why the event can never be stored.
-- Locks: none. SQLSTATEs: class 22 when a value has the wrong JSON type. Callers: internal.
-- No search_path, so that it is inlined into its caller; names in the body are bound at creation.
-- The member of the payload that repeats the deadline of an event, or null when it has none.
CREATE FUNCTION flow_due_member(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'wait_created' THEN 'resume_at'
    WHEN 'step_retrying' THEN 'retry_after'
    WHEN 'hook_created' THEN 'expires_at'
END;

CREATE FUNCTION flow_append_read_events(p_events json, p_shielded boolean)
RETURNS TABLE (
    event_position integer, event_type text, subject_id text, due_at timestamptz, due_in_us bigint,
    payload json, event_id uuid, token text, linked_run_id text, refusal json
)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT e.event_position, e.event_type, e.subject_id, e.due_at, e.due_in_us, e.payload,
           e.event_id, e.token, e.linked_run_id,
           CASE
               WHEN r.reason IS NULL THEN NULL
               WHEN r.bytes > 1048576 THEN json_build_object(
                   'sqlstate', 'WF012', 'reason', r.reason, 'event_type', e.event_type,
                   'bytes', r.bytes, 'max_bytes', 1048576)
               ELSE json_build_object('sqlstate', 'WF009', 'reason', r.reason)
           END AS refusal
      FROM (
        SELECT x.ordinal::integer AS event_position,
               flow_text_unshield(p_shielded, x.type) AS event_type,
               flow_text_unshield(p_shielded, x.subject) AS subject_id,
               CASE WHEN x.due_at IS NOT NULL THEN flow_deadline(x.due_at) END AS due_at,
               x.due_in_us,
               CASE
                   WHEN x.payload IS NULL THEN '{}'::json
                   WHEN p_shielded THEN flow_json_unshield(x.payload::text)::json
                   ELSE x.payload
               END AS payload,
               x.event_id,
               CASE WHEN x.type = 'hook_created'
                   THEN flow_text_unshield(p_shielded, x.payload ->> 'token') END AS token,
               CASE WHEN x.type = 'child_operation_linked'
                   THEN flow_text_unshield(p_shielded, x.payload -> 'child' ->> 'flow_run_id')
               END AS linked_run_id
          FROM ROWS FROM (json_to_recordset(p_events) AS (
                   type text, subject text, due_at text, due_in_us bigint, payload json,
                   event_id uuid))
               WITH ORDINALITY AS x (type, subject, due_at, due_in_us, payload, event_id, ordinal)
        -- keeps the values apart from the questions below, which would compute them again and again
        OFFSET 0
      ) AS e
     CROSS JOIN LATERAL (
        SELECT b.bytes,
               CASE
                   WHEN e.event_type = 'hook_created' AND coalesce(e.token, '') = ''
                       THEN 'a hook_created event has no token'
                   WHEN e.due_in_us IS NOT NULL AND (e.due_at IS NOT NULL
                           OR e.due_in_us NOT BETWEEN 0 AND 250000000000000000
                           OR flow_due_member(e.event_type) IS NULL)
                       THEN 'due_in_us is out of range, beside due_at, or not for this event'
                   WHEN b.bytes > 1048576
                       THEN 'the payload of a ' || flow_event_name(e.event_type)
                           || ' event is too large'
                   ELSE flow_event_refusal(e.event_type, e.subject_id,
                       e.due_at IS NOT NULL OR e.due_in_us IS NOT NULL, e.payload)
               END AS reason
          -- the deadline that will be added to the payload has 64 bytes at most
          FROM (SELECT octet_length(e.payload::text)
                       + CASE WHEN e.due_in_us IS NULL THEN 0 ELSE 64 END AS bytes) AS b
      ) AS r;
END;

REVOKE EXECUTE ON FUNCTION flow_append_read_events(json, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_due_member(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_read_events(json, boolean)
    IS 'Takes the events of one append apart.';
COMMENT ON FUNCTION flow_due_member(text)
    IS 'Payload member that repeats the deadline of an event.';
