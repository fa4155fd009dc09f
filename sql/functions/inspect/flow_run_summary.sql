-- flow_run_summary: how many runs stand where, and what the open ones wait for.
-- Arguments: none. pending_retries counts delayed retries. Reads the status index and the small
--   projections, never a history.
-- Locks: none. SQLSTATEs: none. Callers: reader, client.
CREATE FUNCTION flow_run_summary()
RETURNS TABLE (
    total bigint, pending bigint, running bigint, suspended bigint, cancelling bigint,
    completed bigint, failed bigint, cancelled bigint, continued_as_new bigint, terminal bigint,
    non_terminal bigint, open_waits bigint, active_hooks bigint, pending_retries bigint
)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT s.total, s.pending, s.running, s.suspended, s.cancelling, s.completed, s.failed,
           s.cancelled, s.continued_as_new,
           s.completed + s.failed + s.cancelled + s.continued_as_new,
           s.pending + s.running + s.suspended + s.cancelling,
           w.open_waits, h.active_hooks, w.pending_retries
      FROM (SELECT coalesce(sum(g.amount), 0)::bigint AS total,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'pending'), 0)::bigint AS pending,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'running'), 0)::bigint AS running,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'suspended'), 0)::bigint
                       AS suspended,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'cancelling'), 0)::bigint
                       AS cancelling,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'completed'), 0)::bigint
                       AS completed,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'failed'), 0)::bigint AS failed,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'cancelled'), 0)::bigint
                       AS cancelled,
                   coalesce(sum(g.amount) FILTER (WHERE g.status = 'continued_as_new'), 0)::bigint
                       AS continued_as_new
              FROM (SELECT r.status, count(*) AS amount FROM flow_runs AS r GROUP BY r.status) AS g
           ) AS s
     CROSS JOIN (SELECT count(*) FILTER (WHERE u.kind = 'wait') AS open_waits,
                        count(*) FILTER (WHERE u.kind = 'step_retry') AS pending_retries
                   FROM scheduled_wakeups AS u) AS w
     CROSS JOIN (SELECT count(*) AS active_hooks FROM flow_active_hooks) AS h
$$;

REVOKE EXECUTE ON FUNCTION flow_run_summary() FROM PUBLIC;
COMMENT ON FUNCTION flow_run_summary() IS 'How many runs stand where, and what they wait for.';
