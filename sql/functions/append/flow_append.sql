-- flow_append: appends events to one run; raises what flow_append_many would return as an outcome.
-- Arguments: p_run_id; p_expected, the head the caller knows, or null to append at the head;
--   p_events, the array of events as in flow_append_many; p_epoch, the fence, or null.
-- Returns the new head and the time of the events.
-- Locks: as flow_append_many. SQLSTATEs: WF001, WF003, WF004, WF005, WF008, WF009, WF010, WF012,
--   WF013. Callers: worker.
CREATE FUNCTION flow_append(
    p_run_id text, p_expected bigint, p_events json, p_epoch bigint DEFAULT NULL
) RETURNS TABLE (head_sequence bigint, recorded_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
BEGIN
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail INTO v_done
      FROM flow_append_many(json_build_array(json_build_object(
               'run_id', p_run_id, 'expected', p_expected, 'epoch', p_epoch,
               'events', p_events))) AS a;
    IF v_done.outcome <> 'appended' THEN
        PERFORM flow_append_raise(p_run_id, v_done.outcome, v_done.detail::jsonb);
    END IF;
    RETURN QUERY SELECT v_done.head_sequence, v_done.recorded_at;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append(text, bigint, json, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_append(text, bigint, json, bigint) IS 'Appends events to one run.';
