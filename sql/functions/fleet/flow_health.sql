-- flow_health: what an operator looks at first.
--   flow_health()             one row a fact
--   flow_snapshot_holders()   who keeps vacuum from removing dead rows, the oldest first
-- Facts, by kind and name:
--   queue          one row a queue: count of tasks that are ready, age of the oldest; detail has
--                  leased, expired, delayed, paused and dead_letters
--   wakeups        deadlines that have passed and are not dispatched: count (1000 at most), lag
--   workers        live workers
--   unserved       work that is due and no live worker takes: its workflow or step and its queue,
--                  count, age of the oldest; detail has queue, workflow, step and build; the 100
--                  with the most
--   snapshot       the oldest holder of a snapshot: name, age; detail as flow_snapshot_holders
-- Counting a queue reads its tasks: not for a tight loop.
-- Holders: sessions, prepared transactions, replication slots, standbys with feedback. A role
--   without pg_read_all_stats sees the sessions of its own and not those of others.
-- Arguments: none. Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_snapshot_holders()
RETURNS TABLE (
    kind text, name text, pid integer, state text, transactions_behind bigint, age interval
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.kind, h.name, h.pid, h.state, age(h.xmin)::bigint, clock.now - h.since
      FROM (SELECT flow_now() AS now) AS clock
     CROSS JOIN (
            SELECT 'session' AS kind, coalesce(nullif(a.application_name, ''), a.backend_type)
                       AS name, a.pid, a.state,
                   CASE WHEN age(a.backend_xid) > coalesce(age(a.backend_xmin), -1)
                        THEN a.backend_xid ELSE a.backend_xmin END AS xmin,
                   a.xact_start AS since
              FROM pg_catalog.pg_stat_activity AS a
             WHERE (a.datname = current_database() OR a.datname IS NULL)
               AND a.backend_type NOT IN ('walsender', 'autovacuum worker')
               AND a.pid <> pg_backend_pid()
            UNION ALL
            SELECT 'prepared transaction', p.gid, NULL, NULL, p.transaction, p.prepared
              FROM pg_catalog.pg_prepared_xacts AS p
             WHERE p.database = current_database()
            UNION ALL
            SELECT 'replication slot', s.slot_name::text, s.active_pid,
                   CASE WHEN s.active THEN 'active' ELSE 'inactive' END, s.xmin, NULL
              FROM pg_catalog.pg_replication_slots AS s
            UNION ALL
            SELECT 'standby', r.application_name, r.pid, r.state, r.backend_xmin, NULL
              FROM pg_catalog.pg_stat_replication AS r) AS h
     WHERE h.xmin IS NOT NULL
     ORDER BY age(h.xmin) DESC, clock.now - h.since DESC NULLS LAST;
END
$$;

CREATE FUNCTION flow_health()
RETURNS TABLE (kind text, name text, count bigint, age interval, detail json)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT 'queue', q.queue, coalesce(t.ready, 0), v_now - t.oldest,
           json_build_object('leased', coalesce(t.leased, 0), 'expired', coalesce(t.expired, 0),
               'delayed', coalesce(t.delayed, 0), 'paused', coalesce(c.paused, false),
               'dead_letters', (SELECT count(*) FROM flow_dead_letters AS d
                                 WHERE d.queue = q.queue))
      FROM (SELECT l.queue FROM flow_lanes AS l
            UNION SELECT s.queue FROM flow_queues AS s
            UNION SELECT d.queue FROM flow_dead_letters AS d) AS q
      LEFT JOIN flow_queues AS c ON c.queue = q.queue
      LEFT JOIN LATERAL (
            SELECT count(*) FILTER (WHERE f.lease_owner IS NULL AND f.available_at <= v_now)
                       AS ready,
                   min(f.available_at) FILTER (WHERE f.lease_owner IS NULL
                                                 AND f.available_at <= v_now) AS oldest,
                   count(*) FILTER (WHERE f.lease_expires_at > v_now) AS leased,
                   count(*) FILTER (WHERE f.lease_expires_at <= v_now) AS expired,
                   count(*) FILTER (WHERE f.lease_owner IS NULL AND f.available_at > v_now)
                       AS delayed
              FROM flow_tasks AS f WHERE f.queue = q.queue) AS t ON true
     ORDER BY q.queue;
    RETURN QUERY
    SELECT 'wakeups', '', count(*), v_now - min(d.due_at), NULL::json
      FROM (SELECT w.due_at FROM scheduled_wakeups AS w
             WHERE w.dispatched_at IS NULL AND w.due_at <= v_now
             ORDER BY w.due_at LIMIT 1000) AS d;
    RETURN QUERY
    SELECT 'workers', '', count(*), NULL::interval, NULL::json FROM flow_live_workers() AS l;
    RETURN QUERY
    SELECT 'unserved',
           coalesce('step ' || t.step, 'workflow ' || t.workflow) || ' on queue ' || t.queue,
           t.tasks, v_now - t.oldest,
           json_build_object('queue', t.queue, 'workflow', t.workflow, 'step', t.step,
                             'build', t.build)
      FROM (SELECT f.queue, nullif(f.runtime_build, '') AS build,
                   CASE f.kind WHEN 'run_step' THEN substr(f.workflow_name, 6)
                               ELSE f.missing_step END AS step,
                   CASE f.kind WHEN 'drive_run' THEN f.workflow_name END AS workflow,
                   count(*) AS tasks, min(f.enqueued_at) AS oldest
              FROM flow_tasks AS f
             WHERE f.lease_owner IS NULL AND f.kind IN ('drive_run', 'run_step')
               AND (f.available_at <= v_now OR f.missing_step IS NOT NULL)
             GROUP BY 1, 2, 3, 4) AS t
     WHERE NOT EXISTS (
            SELECT FROM flow_workers AS w
             WHERE w.last_beat > v_now - 3 * w.beat_every AND t.queue = ANY (w.queues)
               AND flow_worker_admits(w, t.build)
               AND (t.workflow IS NULL OR w.workflows IS NULL OR t.workflow = ANY (w.workflows))
               AND (t.step IS NULL OR w.steps IS NULL OR t.step = ANY (w.steps)))
     ORDER BY t.tasks DESC, t.queue, t.workflow, t.step, t.build LIMIT 100;
    RETURN QUERY
    SELECT 'snapshot', h.name, h.transactions_behind, h.age,
           json_build_object('kind', h.kind, 'pid', h.pid, 'state', h.state)
      FROM flow_snapshot_holders() AS h LIMIT 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_snapshot_holders() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_health() FROM PUBLIC;
COMMENT ON FUNCTION flow_snapshot_holders()
    IS 'Who keeps vacuum from removing dead rows, the oldest first.';
COMMENT ON FUNCTION flow_health() IS 'What an operator looks at first.';
