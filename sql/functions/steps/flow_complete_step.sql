-- flow_complete_step: records that an attempt has returned, in the transaction in which the step
-- did its work, so that both take effect or neither does.
-- Arguments: p_run_id; p_epoch, the fence; p_step_id; p_attempt, the attempt that returned;
--   p_payload, the payload of step_completed; p_is_deferrable, whether the transaction in which the
--   step began is the only deferrable one: in another it has ended.
-- Returns one row. outcome: appended; lease_lost, run_terminal, run_not_found, invalid as of
--   flow_append_many; superseded, when this attempt is not waited for, or not any more;
--   transaction_ended, when this is not the transaction in which the step began.
--   Unless it is appended the caller rolls its transaction back. The head moves whatever the driver
--   of the run knows of it: its next append is then refused once, and it reads what came.
-- Locks: as flow_append_many, until the end of the transaction: call it last.
-- SQLSTATEs: those of flow_append_many. Callers: worker.
CREATE FUNCTION flow_complete_step(
    p_run_id text, p_epoch bigint, p_step_id text, p_attempt integer, p_payload json,
    p_is_deferrable boolean DEFAULT false
) RETURNS TABLE (outcome text, head_sequence bigint, recorded_at timestamptz, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_tip record;
    v_status text;
    v_epoch bigint;
BEGIN
    IF p_is_deferrable AND current_setting('transaction_deferrable') <> 'on' THEN
        RETURN QUERY SELECT 'transaction_ended', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT r.status, r.lease_epoch INTO v_status, v_epoch
      FROM flow_runs AS r
     WHERE r.run_id = p_run_id;
    -- whoever lost its lease hears that, and not what others made of the step meanwhile
    IF v_epoch = p_epoch AND NOT flow_is_terminal(v_status) THEN
        SELECT t.event_type, t.attempt, t.is_cancelled INTO v_tip
          FROM flow_step_tip(p_run_id, p_step_id) AS t;
        IF v_tip.event_type IS DISTINCT FROM 'step_started' OR v_tip.is_cancelled
           OR v_tip.attempt IS DISTINCT FROM p_attempt
        THEN
            RETURN QUERY SELECT 'superseded', 0::bigint, flow_now(), NULL::json;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail
      FROM flow_append_many((
               '[{"run_id":' || to_json(p_run_id)::text || ',"epoch":' || p_epoch::text ||
               ',"events":[{"type":"step_completed","subject":' || to_json(p_step_id)::text ||
               ',"payload":' || p_payload::text || '}]}]')::json) AS a;
END
$$;

-- Whether an attempt that was completed so, whose answer was lost, took effect. Waits until the
-- transaction in doubt has ended: it holds the run lock. True also when another worker completed
-- the step.
CREATE FUNCTION flow_step_completed(p_run_id text, p_step_id text)
RETURNS TABLE (is_completed boolean, sequence bigint, recorded_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    RETURN QUERY
    SELECT t.event_type = 'step_completed', t.sequence, t.recorded_at
      FROM flow_step_tip(p_run_id, p_step_id) AS t;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_complete_step(text, bigint, text, integer, json, boolean)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_step_completed(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_complete_step(text, bigint, text, integer, json, boolean)
    IS 'Records that an attempt has returned, in the transaction of its work.';
COMMENT ON FUNCTION flow_step_completed(text, text)
    IS 'Whether a step is completed, once nobody is about to complete it.';
