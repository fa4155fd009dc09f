-- flow_has_suspension: whether a run has an open hook, wait or delayed retry, or a step in another
-- queue.
-- Arguments: p_run_id. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_has_suspension(p_run_id text) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM flow_active_hooks AS h WHERE h.run_id = p_run_id)
    OR EXISTS (SELECT FROM scheduled_wakeups AS w WHERE w.run_id = p_run_id);

REVOKE EXECUTE ON FUNCTION flow_has_suspension(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_has_suspension(text)
    IS 'Whether a run has an open hook, wait or delayed retry, or a step in another queue.';
