-- flow_capabilities: which functions and table privileges each capability needs; the matrix of
-- sql/README.md as data, so that flow_grant and its tests read the same list.
-- Arguments: none. Returns capability, kind ('verb', 'helper' or 'table') and name. Verbs are for
--   people and programs to call; helpers are what verbs call, because they run with the rights of
--   their caller; for a table, privileges says which.
-- Locks: none. SQLSTATEs: none. Callers: whoever reads the matrix.
CREATE FUNCTION flow_capabilities()
RETURNS TABLE (capability text, kind text, name text, privileges text)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    WITH reads (name) AS (VALUES
        ('flow_now'), ('flow_history'), ('flow_run_info'), ('flow_list_runs'),
        ('flow_list_run_ids'), ('flow_run_summary'), ('flow_open_suspensions'),
        ('flow_due_wakeups'), ('flow_next_wakeup'), ('flow_load_runs'), ('flow_capabilities'),
        ('flow_live_workers'), ('flow_build_usage'), ('flow_health'), ('flow_snapshot_holders'),
        ('flow_run_builds')
    ), secrets (name) AS (VALUES
        ('flow_list_active_hooks'), ('flow_find_hook')
    ), client (name) AS (VALUES
        ('flow_start'), ('flow_start_many'), ('flow_resume_wait'), ('flow_resume_due_waits'),
        ('flow_dispose_expired_hooks'), ('flow_resume_hook'), ('flow_resume_hook_by_token'),
        ('flow_dispose_hook'), ('flow_dispose_hook_by_token'), ('flow_request_cancellation'),
        ('flow_force_cancel'), ('flow_terminate_for_timeout'),
        ('flow_terminate_for_host_shutdown'), ('flow_record_progress'),
        ('flow_link_child_operation'), ('flow_wake_run'), ('flow_uuid7'),
        ('flow_enqueue_task'), ('flow_channel'), ('flow_set_run_priority'),
        ('flow_await_run'), ('flow_ended_channel')
    ), worker (name) AS (VALUES
        ('flow_complete_step'), ('flow_step_completed'), ('flow_record_heartbeats'),
        ('flow_step_heartbeat'), ('flow_route_steps'), ('flow_ensure_step_tasks'),
        ('flow_settle_step'), ('flow_superseded_steps'), ('flow_expire_steps'),
        ('flow_append'), ('flow_append_many'), ('flow_append_batch'), ('flow_claim_tasks'),
        ('flow_claim_runs'), ('flow_acquire_run'), ('flow_heartbeat'), ('flow_release_run'),
        ('flow_give_back'), ('flow_enqueue_due'), ('flow_import_history'), ('flow_complete_tasks'),
        ('flow_release_tasks'), ('flow_requeue_expired'), ('flow_dead_letter'), ('flow_redrive'),
        ('flow_pause_queue'), ('flow_resume_queue'), ('flow_set_queue_limits'),
        ('flow_listen_hint'), ('flow_worker_beat'), ('flow_worker_gone'),
        ('flow_release_strays')
    ), verbs (capability, name) AS (
        SELECT c.capability, r.name FROM reads AS r
         CROSS JOIN (VALUES ('reader'), ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT c.capability, s.name FROM secrets AS s
         CROSS JOIN (VALUES ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT c.capability, s.name FROM client AS s
         CROSS JOIN (VALUES ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT 'worker', w.name FROM worker AS w
    )
    SELECT v.capability, 'verb', v.name, 'EXECUTE' FROM verbs AS v
    UNION ALL
    -- nothing that is not a verb and not for administrators does anything by itself
    SELECT c.capability, 'helper', p.proname::text, 'EXECUTE'
      FROM pg_catalog.pg_proc AS p
     CROSS JOIN (VALUES ('reader'), ('client'), ('worker')) AS c (capability)
     WHERE p.pronamespace = current_schema()::regnamespace
       AND p.proname <> 'flow_grant'
       AND NOT EXISTS (SELECT FROM verbs AS v WHERE v.name = p.proname)
       AND (c.capability <> 'reader' OR p.proname IN ('flow_check_exists', 'flow_check_limit',
            'flow_due', 'flow_event_id', 'flow_is_terminal', 'flow_json_is_hard', 'flow_raise',
            'flow_raise_argument', 'flow_raise_not_found', 'flow_time_text',
            'flow_unbundle',
            'flow_waiting_for', 'flow_waiting_step',
            'flow_worker_admits'))
    UNION ALL
    SELECT t.capability, 'table', t.name, t.privileges
      FROM (VALUES
        ('reader', 'flow_events', 'SELECT'),
        ('reader', 'flow_event_log', 'SELECT'),
        ('reader', 'flow_runs', 'SELECT'),
        ('reader', 'scheduled_wakeups', 'SELECT'),
        ('reader', 'flow_tasks', 'SELECT (task_id, queue, run_id, kind, priority, available_at,'
            || ' attempts, lease_owner, lease_expires_at, epoch, wakes, enqueued_at, crashes,'
            || ' runtime_build, workflow_name, concurrency_key, dedupe_key, dedupe_until,'
            || ' max_attempts, max_stalled, retry_delay, timeout, keep, last_error,'
            || ' missing_step)'),
        ('reader', 'flow_queues', 'SELECT'),
        ('reader', 'flow_lanes', 'SELECT'),
        ('reader', 'flow_dead_letters', 'SELECT'),
        ('reader', 'flow_finished_tasks', 'SELECT'),
        ('reader', 'flow_workers', 'SELECT'),
        ('reader', 'flow_step_heartbeats', 'SELECT'),
        ('reader', 'flow_migrations', 'SELECT'),
        -- everything but tokens
        ('reader', 'flow_active_hooks', 'SELECT (run_id, hook_id, metadata, expires_at,'
            || ' created_sequence, created_at, payload_schema)'),
        ('client', 'flow_events', 'SELECT, INSERT'),
        ('client', 'flow_event_log', 'SELECT, INSERT'),
        ('client', 'flow_runs', 'SELECT, INSERT, UPDATE'),
        ('client', 'scheduled_wakeups', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_tasks', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_active_hooks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_migrations', 'SELECT'),
        ('client', 'flow_queues', 'SELECT'),
        ('client', 'flow_lanes', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_marks', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_idle_queues', 'SELECT, UPDATE'),
        ('client', 'flow_run_waiters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_dead_letters', 'SELECT'),
        ('client', 'flow_finished_tasks', 'SELECT'),
        ('client', 'flow_workers', 'SELECT'),
        ('client', 'flow_step_heartbeats', 'SELECT, DELETE'),
        ('worker', 'flow_events', 'SELECT, INSERT'),
        ('worker', 'flow_event_log', 'SELECT, INSERT'),
        ('worker', 'flow_runs', 'SELECT, INSERT, UPDATE'),
        ('worker', 'scheduled_wakeups', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_tasks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_active_hooks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_migrations', 'SELECT'),
        ('worker', 'flow_queues', 'SELECT, INSERT, UPDATE'),
        ('worker', 'flow_lanes', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_marks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_idle_queues', 'SELECT, INSERT, UPDATE'),
        ('worker', 'flow_run_waiters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_dead_letters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_finished_tasks', 'SELECT, INSERT, DELETE'),
        ('worker', 'flow_workers', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_step_heartbeats', 'SELECT, INSERT, UPDATE, DELETE')
      ) AS t (capability, name, privileges)
$$;

REVOKE EXECUTE ON FUNCTION flow_capabilities() FROM PUBLIC;
COMMENT ON FUNCTION flow_capabilities()
    IS 'Which functions and table privileges each capability needs.';
