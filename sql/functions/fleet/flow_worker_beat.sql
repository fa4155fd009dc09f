-- The registry of workers.
--   flow_worker_beat(...)     the worker is alive; call it about every p_every
--   flow_worker_gone(worker)  it ends in good order; returns whether it was known
--   flow_live_workers()       those that did not miss three beats
-- Arguments: p_worker_id, unique to the process; p_build it runs; p_host, p_pid; p_queues;
--   p_workflows and p_steps it knows, null for all; p_slots, p_running; p_every; p_builds whose
--   runs it drives, null for all; p_accept_unpinned, whether it drives runs of no build.
-- The first beat of a worker makes the runs claimable that rest because nobody knew their step.
-- No lease depends on it: it is what operators and waiting_for read. Workers that missed their
--   beats for a day are forgotten by the next beat of any, and so is who waited for a run an hour
--   ago.
-- Locks: rows of flow_workers; queue rows, only when free. SQLSTATEs: WF010.
-- Callers: worker; flow_live_workers: all.
CREATE FUNCTION flow_worker_beat(
    p_worker_id text, p_build text, p_host text, p_pid integer, p_queues text[],
    p_workflows text[], p_steps text[], p_slots integer, p_running integer,
    p_every interval DEFAULT '10 seconds', p_builds text[] DEFAULT NULL,
    p_accept_unpinned boolean DEFAULT true
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_known boolean;
BEGIN
    IF coalesce(btrim(p_worker_id), '') = '' THEN
        PERFORM flow_raise_argument('p_worker_id', 'it is blank');
    ELSIF p_every IS NULL OR p_every <= '0' OR p_every > interval '1000 years' THEN
        -- three times as long is taken from the time in every list of workers
        PERFORM flow_raise_argument('p_every',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
    v_known := EXISTS (SELECT FROM flow_workers AS w WHERE w.worker_id = p_worker_id);
    INSERT INTO flow_workers AS w (worker_id, runtime_build, builds, accepts_unpinned, host, pid,
        queues, workflows, steps, slots, running, started_at, last_beat, beat_every)
    VALUES (p_worker_id, p_build, p_builds, coalesce(p_accept_unpinned, true),
        coalesce(p_host, ''), coalesce(p_pid, 0), coalesce(p_queues, '{}'), p_workflows, p_steps,
        coalesce(p_slots, 0), coalesce(p_running, 0), v_now, v_now, p_every)
        ON CONFLICT (worker_id) DO UPDATE
       SET runtime_build = excluded.runtime_build, builds = excluded.builds,
           accepts_unpinned = excluded.accepts_unpinned, host = excluded.host,
           pid = excluded.pid, queues = excluded.queues, workflows = excluded.workflows,
           steps = excluded.steps, slots = excluded.slots, running = excluded.running,
           last_beat = excluded.last_beat, beat_every = excluded.beat_every;
    IF NOT v_known AND p_steps IS NOT NULL THEN
        -- what was waiting for a step that this worker knows need not rest any longer
        UPDATE flow_tasks AS t
           SET available_at = v_now
          FROM (SELECT o.task_id
                  FROM (SELECT r.run_id FROM flow_runs AS r
                         WHERE r.blocked_reason IS NOT NULL) AS b
                 CROSS JOIN LATERAL (
                        SELECT f.task_id FROM flow_tasks AS f
                         WHERE f.run_id = b.run_id AND f.kind = 'drive_run'
                           AND f.queue = ANY (p_queues) AND f.lease_owner IS NULL
                           AND f.available_at > v_now AND f.missing_step = ANY (p_steps)
                           FOR UPDATE SKIP LOCKED) AS o
                 LIMIT 1000) AS due
         WHERE t.task_id = due.task_id;
    END IF;
    DELETE FROM flow_workers AS w
          USING (SELECT f.worker_id FROM flow_workers AS f
                  WHERE f.last_beat < v_now - interval '1 day' FOR UPDATE SKIP LOCKED) AS old
          WHERE w.worker_id = old.worker_id;
    -- left by who asked in the moment in which the end was committed
    DELETE FROM flow_run_waiters AS w
          USING (SELECT f.run_id FROM flow_run_waiters AS f
                  WHERE f.waited_until < v_now - interval '1 hour' FOR UPDATE SKIP LOCKED) AS old
          WHERE w.run_id = old.run_id;
END
$$;

CREATE FUNCTION flow_worker_gone(p_worker_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    DELETE FROM flow_workers AS w WHERE w.worker_id = p_worker_id;
    RETURN FOUND;
END
$$;

CREATE FUNCTION flow_live_workers()
RETURNS TABLE (
    worker_id text, runtime_build text, builds text[], accepts_unpinned boolean, host text,
    pid integer, queues text[], workflows text[], steps text[], slots integer, running integer,
    started_at timestamptz, last_beat timestamptz
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT w.worker_id, w.runtime_build, w.builds, w.accepts_unpinned, w.host, w.pid, w.queues,
           w.workflows, w.steps, w.slots, w.running, w.started_at, w.last_beat
      FROM flow_workers AS w
     WHERE w.last_beat > v_now - 3 * w.beat_every
     ORDER BY w.worker_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_worker_beat(text, text, text, integer, text[], text[], text[],
    integer, integer, interval, text[], boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_worker_gone(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_live_workers() FROM PUBLIC;
COMMENT ON FUNCTION flow_worker_beat(text, text, text, integer, text[], text[], text[], integer,
    integer, interval, text[], boolean) IS 'Says that a worker is alive, and what it can do.';
COMMENT ON FUNCTION flow_worker_gone(text) IS 'Says that a worker ends in good order.';
COMMENT ON FUNCTION flow_live_workers() IS 'The workers that did not miss three beats.';
