-- flow_build_usage: which builds still have open runs, and who can drive them: a build without open
-- runs may be retired.
-- Arguments: none. Returns one row a build that open runs are pinned to or that a live worker runs:
--   open_runs, oldest_created_at of them, and live_workers, those that drive runs of the build.
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_build_usage()
RETURNS TABLE (
    runtime_build text, open_runs bigint, oldest_created_at timestamptz, live_workers bigint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT w.runtime_build, w.builds FROM flow_live_workers() AS w
    ), used AS (
        SELECT r.runtime_build, count(*) AS n, min(r.created_at) AS oldest
          FROM flow_runs AS r
         WHERE r.runtime_build IS NOT NULL AND r.ended_at IS NULL AND r.head_sequence > 0
         GROUP BY r.runtime_build
    )
    SELECT coalesce(u.runtime_build, b.runtime_build), coalesce(u.n, 0), u.oldest,
           (SELECT count(*) FROM live AS l
             WHERE l.builds IS NULL
                OR coalesce(u.runtime_build, b.runtime_build) = ANY (l.builds))
      FROM used AS u
      FULL JOIN (SELECT DISTINCT l.runtime_build FROM live AS l
                  WHERE l.runtime_build IS NOT NULL) AS b
        ON b.runtime_build = u.runtime_build
     ORDER BY 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_build_usage() FROM PUBLIC;
COMMENT ON FUNCTION flow_build_usage() IS 'Which builds still have open runs.';
