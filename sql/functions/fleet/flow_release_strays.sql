-- flow_release_strays: gives back the leases of runs that a claim took and nobody was told of,
-- because whoever claimed gave up waiting for the answer.
-- Arguments: p_queues of that claim; p_owner, the name it was made under, and no later claim is;
--   p_held, a JSON array of the {"task_id", "epoch"} that its process does have.
-- Returns how many were given back, without a mark of the attempt, and how many could not be
--   because their run is busy right now: call it again.
-- Locks, in order: as flow_release_tasks. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_release_strays(p_queues text[], p_owner text, p_held json)
RETURNS TABLE (released bigint, busy bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_epochs bigint[];
    v_strays json;
BEGIN
    BEGIN
        SELECT array_agg(l.task_id), array_agg(l.epoch) INTO v_tasks, v_epochs
          FROM json_to_recordset(p_held) AS l (task_id bigint, epoch bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_held', 'it must be an array of {"task_id", "epoch"}');
    END;
    SELECT json_agg(json_build_object('task_id', t.task_id, 'epoch', t.epoch)) INTO v_strays
      FROM flow_tasks AS t
     WHERE t.queue = ANY (p_queues) AND t.lease_owner = p_owner AND t.kind = 'drive_run'
       AND t.epoch IS DISTINCT FROM v_epochs[array_position(v_tasks, t.task_id)];
    RETURN QUERY
    SELECT count(*) FILTER (WHERE r.released), count(*) FILTER (WHERE NOT r.released)
      FROM flow_release_tasks(coalesce(v_strays, '[]')) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_strays(text[], text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_strays(text[], text, json)
    IS 'Gives back the leases that a claim took and nobody was told of.';
