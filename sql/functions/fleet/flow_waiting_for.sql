-- flow_waiting_for: why nobody takes a run that has work to do, as far as it can be computed.
-- Arguments: p_run_id; p_queue, p_workflow, p_build, p_status, p_dead_letter_id as in flow_runs.
-- Returns null when the run has ended, has nothing to do now, is at work, or is a dead letter (then
--   blocked_reason says so); else: its queue is paused, or no live worker serves its queue, its
--   build, its workflow or the step that the worker who tried it last did not know; or what
--   flow_waiting_step says of a step that it left to another queue. Runs that a
--   live worker will take get null as well.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_waiting_for(
    p_run_id text, p_queue text, p_workflow text, p_build text, p_status text,
    p_dead_letter_id bigint
) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_task record;
    v_workers record;
BEGIN
    IF flow_is_terminal(p_status) OR p_dead_letter_id IS NOT NULL THEN
        RETURN NULL;
    END IF;
    SELECT t.available_at, t.missing_step INTO v_task
      FROM flow_tasks AS t
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run'
       AND (t.lease_owner IS NULL OR t.lease_expires_at <= v_now);
    IF NOT FOUND THEN
        RETURN flow_waiting_step(p_run_id, p_build);
    END IF;
    IF v_task.missing_step IS NULL AND v_task.available_at > v_now THEN
        RETURN NULL;
    END IF;
    PERFORM FROM flow_queues AS q WHERE q.queue = p_queue AND q.paused;
    IF FOUND THEN
        RETURN format('queue %s is paused', p_queue);
    END IF;
    SELECT count(*) AS serve,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)) AS admit,
           count(*) FILTER (WHERE w.workflows IS NULL OR p_workflow = ANY (w.workflows)) AS know,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)
               AND (w.workflows IS NULL OR p_workflow = ANY (w.workflows))) AS fit,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)
               AND (w.workflows IS NULL OR p_workflow = ANY (w.workflows))
               AND v_task.missing_step = ANY (w.steps)) AS step
      INTO v_workers
      FROM flow_workers AS w
     WHERE w.last_beat > v_now - 3 * w.beat_every AND p_queue = ANY (w.queues);
    RETURN CASE
        WHEN v_workers.fit > 0 AND v_workers.step = 0 AND v_task.missing_step IS NOT NULL
            THEN format('no worker for step %s', v_task.missing_step)
        WHEN v_workers.fit > 0 THEN NULL
        WHEN v_workers.serve = 0 THEN format('no worker for queue %s', p_queue)
        WHEN v_workers.know = 0 THEN format('no worker for workflow %s', p_workflow)
        WHEN v_workers.admit = 0 AND p_build IS NULL THEN 'no worker for runs without a build'
        WHEN v_workers.admit = 0 THEN format('no worker for build %s', p_build)
        WHEN p_build IS NULL THEN format('no worker for workflow %s without a build', p_workflow)
        ELSE format('no worker for workflow %s of build %s', p_workflow, p_build) END;
END
$$;

-- Whether a worker drives runs of a build; null is no build.
CREATE FUNCTION flow_worker_admits(p_worker flow_workers, p_build text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_build IS NULL THEN (p_worker).accepts_unpinned
            ELSE (p_worker).builds IS NULL OR p_build = ANY ((p_worker).builds) END;

REVOKE EXECUTE ON FUNCTION flow_waiting_for(text, text, text, text, text, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_worker_admits(flow_workers, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_waiting_for(text, text, text, text, text, bigint)
    IS 'Why nobody takes a run that has work to do.';
COMMENT ON FUNCTION flow_worker_admits(flow_workers, text)
    IS 'Whether a worker drives runs of a build.';
