-- flow_run_summary: how many runs stand where, and what the open ones wait for.
-- Arguments: none. Counts the whole of flow_runs by an index, so its cost grows with the number of
--   runs; open runs cost more, because their rows tell in which status they are. The other counts
--   are over open things only. pending_retries are delayed retries.
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_run_summary()
RETURNS TABLE (
    total bigint, pending bigint, running bigint, suspended bigint, cancelling bigint,
    completed bigint, failed bigint, cancelled bigint, continued_as_new bigint, terminal bigint,
    non_terminal bigint, open_waits bigint, active_hooks bigint, pending_retries bigint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT coalesce(sum(s.n), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'pending'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'running'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'suspended'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'cancelling'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'completed'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'failed'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'cancelled'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'continued_as_new'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE flow_is_terminal(s.status)), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE NOT flow_is_terminal(s.status)), 0)::bigint,
           (SELECT count(*) FROM scheduled_wakeups AS w WHERE w.kind = 'wait'),
           (SELECT count(*) FROM flow_active_hooks AS h),
           (SELECT count(*) FROM scheduled_wakeups AS w WHERE w.kind = 'step_retry')
      FROM (SELECT r.listed_as AS status, count(*) AS n
              FROM flow_runs AS r
             WHERE r.listed_as IN ('cancelling', 'completed', 'failed', 'cancelled',
                                   'continued_as_new')
             GROUP BY r.listed_as
            UNION ALL
            SELECT r.status, count(*) FROM flow_runs AS r
             WHERE r.listed_as = 'open'
             GROUP BY r.status) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_run_summary() FROM PUBLIC;
COMMENT ON FUNCTION flow_run_summary()
    IS 'How many runs stand where, and what the open ones wait for.';
