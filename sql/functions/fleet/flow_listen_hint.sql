-- flow_listen_hint: says that somebody listens to these queues and has nothing to do.
-- Call it, then claim once more, then wait: a task that came before the hint is found by that
--   claim, one that comes after it is notified. Call it again after each notification and when it
--   runs out.
-- Arguments: p_queues; p_idle, how long the hint is good, at most a minute.
-- Returns after how long to call it again because a queue was notified in the last ten
--   milliseconds and is not listened for until then: commits that notify wait for each other, so
--   there are at most a hundred of them a second and queue. Nothing ('0') means that whatever
--   comes is notified; null that one of the queues does not notify, so that looking must do.
-- Nothing is written while a hint is good for half of that, and nobody is waited for.
-- Locks: rows of flow_idle_queues, only when free. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_listen_hint(p_queues text[], p_idle interval DEFAULT '10 seconds')
RETURNS interval
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    c_rest CONSTANT interval := '10 milliseconds';
    v_now timestamptz := flow_now();
    v_queue text;
    v_rest interval;
BEGIN
    IF p_idle IS NULL OR p_idle NOT BETWEEN interval '0' AND interval '1 minute' THEN
        PERFORM flow_raise_argument('p_idle', 'it must be from nothing to one minute');
    END IF;
    FOR v_queue IN
        SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)
         WHERE NOT EXISTS (SELECT FROM flow_idle_queues AS i WHERE i.queue = u.queue)
    LOOP
        IF pg_try_advisory_xact_lock(flow_mark_key('idle ' || v_queue)) THEN
            INSERT INTO flow_idle_queues (queue) VALUES (v_queue) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    PERFORM FROM flow_queues AS q WHERE q.queue = ANY (p_queues) AND NOT q.notify;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT max(i.notified_at) + c_rest - v_now INTO v_rest
      FROM flow_idle_queues AS i
     WHERE i.queue = ANY (p_queues) AND i.idle_until IS NULL
       AND i.notified_at BETWEEN v_now - c_rest AND v_now;
    PERFORM FROM flow_idle_queues AS i
      WHERE i.queue = ANY (p_queues)
        AND (i.idle_until IS NULL OR i.idle_until NOT BETWEEN v_now + p_idle / 2
                                                         AND v_now + interval '1 minute')
        AND i.notified_at NOT BETWEEN v_now - c_rest AND v_now;
    IF FOUND THEN
        UPDATE flow_idle_queues AS i
           SET idle_until = v_now + p_idle
          FROM (SELECT f.queue FROM flow_idle_queues AS f
                 WHERE f.queue = ANY (p_queues)
                   AND (f.idle_until IS NULL OR f.idle_until < v_now + p_idle
                        OR f.idle_until > v_now + interval '1 minute')
                   AND f.notified_at NOT BETWEEN v_now - c_rest AND v_now
                 ORDER BY f.queue
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE i.queue = free.queue;
    END IF;
    RETURN coalesce(v_rest, '0');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_listen_hint(text[], interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_listen_hint(text[], interval)
    IS 'Says that somebody listens to these queues and has nothing to do.';
