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
                   coalesce(x.queue, 'default'), s.event_count + coalesce(b.steps, 0), false,
                   s.kinds & 1 <> 0, s.kinds & 2 <> 0, NULL,
                   CASE WHEN x.steps IS NULL THEN s.events
                        ELSE array_append(s.events, ROW(coalesce(x.before, 0) + b.steps, NULL, NULL,
                            NULL, NULL, x.steps, NULL, NULL, NULL, b.steps)::flow_append_event)
                   END)::flow_append_element),
               bool_and((s.is_fine AND octet_length(x.run_id) BETWEEN 1 AND 255
                         AND x.queue IS NULL
                         AND CASE
                                 WHEN x.steps IS NULL THEN x.before IS NULL
                                 -- the deadlines of retries are told apart one by one
                                 ELSE b.is_fine AND s.kinds & 4 = 0
                                      AND octet_length(x.steps::text) <= 1048576
                                      AND coalesce(x.before, 0) BETWEEN 0 AND s.event_count
                             END
                         AND CASE WHEN x.release IS NULL
                                  THEN s.event_count > 0 OR x.steps IS NOT NULL
                                  ELSE x.epoch IS NOT NULL END) IS TRUE)
          INTO v_elements, v_is_fine
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json, steps json, before integer))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, steps, before,
                   ordinal)
         CROSS JOIN LATERAL (
            SELECT count(*)::integer AS steps,
                   bool_and(i.item::text LIKE '["_",{"step\_id":"_%}]'
                            AND substr(i.item::text, 3, 1) IN ('d', 'c', 's', 'C', 'S')
                            AND substr(i.item::text, 18, 1) NOT IN ('"', ' ')
                            AND json_array_length(i.item) = 2
                            AND (octet_length(i.item::text) <= 2048
                                 OR octet_length(i.item -> 1 ->> 'step_id') <= 2048)) AS is_fine
              FROM json_array_elements(x.steps) AS i (item)
            ) AS b
         CROSS JOIN LATERAL (
            SELECT count(*)::integer AS event_count,
                   coalesce(bit_or(CASE v.type WHEN 'hook_created' THEN 1
                                               WHEN 'child_operation_linked' THEN 2
                                               WHEN 'step_retrying' THEN 4 END), 0) AS kinds,
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
                   -- nothing follows an end
                   AND coalesce(min(v.ordinal) FILTER (
                           WHERE starts_with(v.type, 'run_')
                             AND flow_terminal_status(v.type) IS NOT NULL)
                       >= CASE WHEN x.steps IS NULL OR x.before < count(*) OR x.before IS NULL
                               THEN count(*) ELSE count(*) + 1 END, true) AS is_fine,
                   array_agg(ROW(v.ordinal + CASE WHEN v.ordinal > x.before OR x.before IS NULL
                                                  THEN coalesce(b.steps, 0) ELSE 0 END,
                       v.type, v.subject,
                       CASE WHEN v.due_at IS NOT NULL THEN flow_deadline(v.due_at) END,
                       v.due_in_us, coalesce(v.payload, '{}'), v.event_id,
                       CASE WHEN v.type = 'hook_created' THEN v.payload ->> 'token' END,
                       CASE WHEN v.type = 'child_operation_linked'
                           THEN v.payload -> 'child' ->> 'flow_run_id' END, 1)::flow_append_event)
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
    RETURN flow_append_examine(p_batch, p_shielded);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_read(json, boolean) IS 'Takes a batch of appends apart.';
