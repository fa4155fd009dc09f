-- flow_append_raise: raises a refused append as an error.
-- Arguments: p_run_id; p_outcome and p_detail, as flow_append_many returned them.
-- Locks: none. SQLSTATEs: WF001, WF003, WF004, WF005, WF008, WF009, WF010, WF012, WF013.
-- Callers: internal.
CREATE FUNCTION flow_append_raise(p_run_id text, p_outcome text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    CASE p_outcome
        WHEN 'run_not_found' THEN
            PERFORM flow_raise_not_found(p_run_id);
        WHEN 'link_not_found' THEN
            PERFORM flow_raise_not_found(p_detail ->> 'flow_run_id');
        WHEN 'run_terminal' THEN
            PERFORM flow_raise_terminal(p_run_id, p_detail ->> 'status');
        WHEN 'event_conflict' THEN
            PERFORM flow_raise('WF003',
                format('run %s is at sequence %s, not at %s as expected', p_run_id,
                    p_detail ->> 'actual', p_detail ->> 'expected'),
                jsonb_build_object('run_id', p_run_id) || p_detail,
                'Read the run again and decide again.');
        WHEN 'lease_lost' THEN
            PERFORM flow_raise('WF008',
                format('run %s is driven by another lease: epoch %s is current, %s was given',
                    p_run_id, p_detail ->> 'current', p_detail ->> 'epoch'),
                jsonb_build_object('run_id', p_run_id) || p_detail,
                'Stop driving the run; whoever holds the lease goes on with it.');
        WHEN 'hook_token_conflict' THEN
            PERFORM flow_raise_token_conflict(p_run_id, p_detail ->> 'requested_hook_id',
                p_detail ->> 'run_id', p_detail ->> 'hook_id');
        ELSE
            CASE p_detail ->> 'sqlstate'
                WHEN 'WF010' THEN PERFORM flow_raise_argument('p_events', p_detail ->> 'reason');
                WHEN 'WF012' THEN PERFORM flow_raise_too_large(p_run_id,
                    p_detail ->> 'event_type', (p_detail ->> 'bytes')::integer);
                WHEN 'WF013' THEN PERFORM flow_raise_run_id(p_run_id);
                ELSE PERFORM flow_raise_transition(p_run_id, p_detail ->> 'reason');
            END CASE;
    END CASE;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_raise(text, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_raise(text, text, jsonb) IS 'Raises a refused append as an error.';
