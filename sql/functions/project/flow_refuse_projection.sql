-- flow_refuse_projection: raises the error of events that cannot follow the stream of their run.
-- Arguments: p_change, the change that did not fit the run's row.
-- Locks: none. SQLSTATEs: WF004 something after the end; WF009 a gap, or run_created not first.
-- Callers: internal.
CREATE FUNCTION flow_refuse_projection(p_change flow_run_change) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_head bigint;
    v_status text;
BEGIN
    SELECT r.head_sequence, r.status INTO v_head, v_status
      FROM flow_runs AS r WHERE r.run_id = p_change.run_id;
    IF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_change.run_id, v_status);
    ELSIF NOT p_change.is_broken AND v_head IS NOT NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, format(
            'event %s does not follow event %s', p_change.first_sequence, v_head));
    ELSIF p_change.first_sequence = 1 AND p_change.create_payload IS NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, 'the first event must be run_created');
    ELSIF p_change.first_sequence > 1 AND p_change.create_payload IS NOT NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, 'run_created can only be the first event');
    ELSIF v_head IS NULL AND p_change.create_payload IS NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, format(
            'event %s has no event before it', p_change.first_sequence));
    ELSIF p_change.terminal_status IS NOT NULL THEN
        PERFORM flow_raise_terminal(p_change.run_id, p_change.terminal_status);
    ELSE
        PERFORM flow_raise_transition(p_change.run_id, format(
            'events %s to %s have a gap', p_change.first_sequence, p_change.last_sequence));
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_refuse_projection(flow_run_change) FROM PUBLIC;
COMMENT ON FUNCTION flow_refuse_projection(flow_run_change)
    IS 'Raises the error of events that cannot follow the stream of their run.';
