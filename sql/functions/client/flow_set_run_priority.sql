-- flow_set_run_priority: says when a run is taken before others, and with which it shares a limit.
-- Call it in the transaction that starts the run, or at any time later.
-- Arguments: p_run_id; p_priority of its drive tasks, smaller is claimed first; p_concurrency_key,
--   runs of one key share flow_queues.max_per_key of their queue, null for none.
-- Nothing is written to the history. A run that is at work is not interrupted.
-- Returns whether the run is still open.
-- Locks, in order: retention guard (shared), run lock, row, queue row.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_set_run_priority(
    p_run_id text, p_priority smallint DEFAULT 0::smallint, p_concurrency_key text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_status text;
BEGIN
    IF octet_length(p_concurrency_key) > 1024 OR btrim(p_concurrency_key) = '' THEN
        PERFORM flow_raise_argument('p_concurrency_key', 'it must be 1 to 1024 bytes, not blank');
    END IF;
    SELECT o.status INTO v_status FROM flow_open_run(p_run_id, '{}') AS o;
    UPDATE flow_runs AS r
       SET priority = coalesce(p_priority, 0), concurrency_key = p_concurrency_key
     WHERE r.run_id = p_run_id;
    UPDATE flow_tasks AS t
       SET priority = coalesce(p_priority, 0), concurrency_key = p_concurrency_key
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run';
    RETURN NOT flow_is_terminal(v_status);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_set_run_priority(text, smallint, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_set_run_priority(text, smallint, text)
    IS 'Says when a run is taken before others, and with which it shares a limit.';
