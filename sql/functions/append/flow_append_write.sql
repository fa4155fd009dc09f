-- flow_append_write: stores the events of the accepted elements of a batch.
-- Arguments: p_elements, p_bases (the head before the append, null for a refused element), p_at
--   (the time of all events). A deadline given as a duration is counted from p_at and written into
--   the payload as its last member; otherwise the payload is stored as it came.
-- Locks: rows; run and token locks are the caller's. SQLSTATEs: those of the trigger, none for
--   elements that were checked. Callers: internal.
CREATE FUNCTION flow_append_write(
    p_elements flow_append_element[], p_bases bigint[], p_at timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_event_log
        (run_id, sequence, event_count, event_id, event_type, subject_id, due_at, payload,
        recorded_at)
    SELECT e.run_id, e.base + v.event_position, v.event_count, v.event_id,
           v.event_type, v.subject_id,
           CASE WHEN v.due_in_us IS NULL THEN v.due_at
                ELSE flow_time_after(p_at, v.due_in_us) END,
           CASE WHEN v.due_in_us IS NULL THEN v.payload
                ELSE flow_append_due(v.payload, v.event_type, p_at, v.due_in_us) END,
           p_at
      FROM unnest(p_elements, p_bases) AS e (
               ordinal, run_id, expected, epoch, release, queue, event_count, creates, has_token,
               has_link, refusal, events, base)
     CROSS JOIN LATERAL unnest(e.events) AS v
     WHERE e.base IS NOT NULL;
END
$$;

-- A payload with its deadline. A function of its own so that an append without any need not get its
-- many parts ready.
CREATE FUNCTION flow_append_due(
    p_payload json, p_event_type text, p_at timestamptz, p_microseconds bigint
) RETURNS json
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN flow_json_with(p_payload, flow_due_member(p_event_type),
                          flow_time_text(flow_time_after(p_at, p_microseconds)));
END
$$;

-- Rows for runs about to be created, head 0 until then: to give them a queue of their own, or, in a
-- transaction that keeps one snapshot, to raise 40001 for a run that it cannot see.
CREATE FUNCTION flow_reserve_runs(p_run_ids text[], p_queues text[], p_at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_runs (run_id, workflow_name, workflow_version, queue, status, head_sequence,
        created_at, updated_at)
    SELECT i.run_id, '', '', i.queue, 'pending', 0, p_at, p_at
      FROM unnest(p_run_ids, p_queues) AS i (run_id, queue)
        ON CONFLICT (run_id) DO NOTHING;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_write(flow_append_element[], bigint[], timestamptz)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_due(json, text, timestamptz, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_reserve_runs(text[], text[], timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_write(flow_append_element[], bigint[], timestamptz)
    IS 'Stores the events of the accepted elements of a batch.';
COMMENT ON FUNCTION flow_append_due(json, text, timestamptz, bigint)
    IS 'A payload with its deadline as last member.';
COMMENT ON FUNCTION flow_reserve_runs(text[], text[], timestamptz)
    IS 'Rows for runs about to be created in a queue of their own.';
