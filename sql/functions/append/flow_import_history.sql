-- flow_import_history: stores the complete history of a new run under its own ids and times.
-- Arguments: p_run_id; p_events, a JSON array in order of {"sequence", "type", "subject"?,
--   "due_at"? (RFC 3339), "payload", "event_id", "recorded_at" (RFC 3339), "schema_version"?};
--   p_queue.
-- Returns the head. A run that has not ended is woken.
-- Locks, in order: retention guard (shared), run lock, token locks, rows, queue row.
-- SQLSTATEs: WF002 the run exists; WF004 and WF009 the events do not follow one another; WF005 an
--   open hook's token is taken; WF010 malformed; WF012; WF013. Callers: worker.
CREATE FUNCTION flow_import_history(
    p_run_id text, p_events json, p_queue text DEFAULT 'default'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_shielded boolean := flow_json_is_hard(p_events::text);
    v_events json := p_events;
    v_rows flow_import_event[];
    v_head bigint;
    v_status text;
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    IF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'a queue name has 1 to 255 bytes and is not blank');
    END IF;
    IF v_shielded THEN
        v_events := flow_json_shield(p_events::text)::json;
    END IF;
    BEGIN
        SELECT array_agg(ROW(x.sequence, flow_text_unshield(v_shielded, x.type),
                   flow_text_unshield(v_shielded, x.subject), flow_deadline(x.due_at),
                   CASE WHEN v_shielded THEN flow_json_unshield(x.payload::text)::json
                        ELSE x.payload END,
                   x.event_id, x.recorded_at, x.schema_version)::flow_import_event)
          INTO v_rows
          FROM json_to_recordset(v_events) AS x (sequence bigint, type text, subject text,
                   due_at text, payload json, event_id uuid, recorded_at timestamptz,
                   schema_version smallint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_events', 'an event has a member of the wrong type or form');
    END;
    IF v_rows IS NULL THEN
        PERFORM flow_raise_argument('p_events', 'there is no event');
    END IF;

    IF EXISTS (SELECT FROM unnest(v_rows) AS e WHERE e.event_id IS NULL) THEN
        PERFORM flow_raise_transition(p_run_id, 'an event of a history has an event id');
    END IF;

    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    PERFORM FROM flow_runs AS r WHERE r.run_id = p_run_id;
    IF FOUND THEN
        PERFORM flow_raise_conflict(p_run_id, 'the run exists already');
    END IF;
    IF p_queue <> 'default' OR flow_is_repeatable() THEN
        PERFORM flow_reserve_runs(ARRAY[p_run_id], ARRAY[p_queue], flow_now());
    END IF;
    BEGIN
        INSERT INTO flow_event_log (run_id, sequence, event_id, event_type, subject_id, due_at,
            payload, recorded_at, schema_version)
        SELECT p_run_id, e.sequence,
               -- what is derived anyway need not be kept
               nullif(e.event_id, flow_event_id(p_run_id, e.sequence)), e.event_type, e.subject_id,
               e.due_at, e.payload,
               e.recorded_at, e.schema_version
          FROM unnest(v_rows) AS e;
    EXCEPTION WHEN unique_violation THEN
        PERFORM flow_raise_transition(p_run_id, 'two events have the same sequence');
    END;
    SELECT r.head_sequence, r.status INTO v_head, v_status
      FROM flow_runs AS r WHERE r.run_id = p_run_id;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_import_history(text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_import_history(text, json, text)
    IS 'Stores the complete history of a new run under its own ids and times.';
