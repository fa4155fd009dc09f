-- flow_run_builds: the builds that runs are pinned to.
-- Arguments: p_run_ids; unknown runs are left out. Returns one row a run; runtime_build is null
--   where any build will do.
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_run_builds(p_run_ids text[])
RETURNS TABLE (run_id text, runtime_build text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r.run_id, r.runtime_build
      FROM (SELECT DISTINCT u.run_id FROM unnest(p_run_ids) AS u (run_id)) AS i
     CROSS JOIN LATERAL (
            SELECT f.run_id, f.runtime_build FROM flow_runs AS f
             WHERE f.run_id = i.run_id AND f.head_sequence > 0 LIMIT 1) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_run_builds(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_run_builds(text[]) IS 'The builds that runs are pinned to.';
