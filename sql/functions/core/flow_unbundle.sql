-- Bundles: step events that stand together in one append, stored as one row of flow_event_log.
--   flow_unbundle(bundle, last, count)   the events of a bundle, numbered up to last
-- An item is [letter, payload]: c for step_created, s for step_started, d for step_completed; the
-- payload begins with the subject, as step_id, and keeps its text. C is a step_created, and S a
-- step_started, whose payload ends with the usual policy or with attempt 1: that is left out.
-- What flow_json_is_hard says yes to is never bundled: it could not be taken apart.
-- An item that is none of these, which only an INSERT past the verbs can store, comes out as an
-- event step_unreadable: no driver reads its run, and nobody else who reads the table is harmed.
-- Arguments: as named. Locks: none. SQLSTATEs: none. Callers: internal, and the view flow_events.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_unbundle(p_bundle json, p_last bigint, p_count integer)
RETURNS TABLE (sequence bigint, event_type text, subject_id text, payload json)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT p_last - p_count + i.n,
           CASE
               WHEN i.letter IN ('d', 'c', 's') AND json_typeof(i.payload) = 'object'
                    OR i.letter IN ('C', 'S') AND i.payload::text LIKE '{"%'
               THEN CASE lower(i.letter)
                   WHEN 'd' THEN 'step_completed'
                   WHEN 'c' THEN 'step_created'
                   WHEN 's' THEN 'step_started'
               END
               ELSE 'step_unreadable'
           END,
           i.payload ->> 'step_id',
           CASE
               WHEN i.letter = 'C' AND i.payload::text LIKE '{"%'
                   THEN (left(i.payload::text, -1)
                         || ',"retry":{"max_attempts":3,"delay_ms":0}}')::json
               WHEN i.letter = 'S' AND i.payload::text LIKE '{"%'
                   THEN (left(i.payload::text, -1) || ',"attempt":1}')::json
               ELSE coalesce(i.payload, '{}')
           END
      FROM (SELECT a.n, a.item ->> 0 AS letter, a.item -> 1 AS payload
              FROM json_array_elements(
                       CASE WHEN json_typeof(p_bundle) = 'array'
                                 AND NOT flow_json_is_hard(p_bundle::text)
                            THEN p_bundle ELSE '[null]'::json
                       END) WITH ORDINALITY AS a (item, n)
            OFFSET 0) AS i;
END;

REVOKE EXECUTE ON FUNCTION flow_unbundle(json, bigint, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_unbundle(json, bigint, integer) IS 'The events of a bundle.';
