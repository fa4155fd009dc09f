-- What operators say about queues.
--   flow_pause_queue(queue)    nothing is claimed from it any more; what is at work goes on
--   flow_resume_queue(queue)   it is claimed from again
--   flow_set_queue_limits(queue, max_running, max_per_key, rate_limit, rate_interval)
-- Arguments: p_queue; p_max_running, most live leases at a time; p_max_per_key, most of one
--   concurrency key; p_rate_limit, most claims in p_rate_interval. Null: no limit.
-- Pausing and resuming return whether that changed anything.
-- Locks: the row of the queue. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_pause_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_check_queue(p_queue);
    INSERT INTO flow_queues AS q (queue, paused) VALUES (p_queue, true)
        ON CONFLICT (queue) DO UPDATE SET paused = true WHERE NOT q.paused;
    RETURN FOUND;
END
$$;

CREATE FUNCTION flow_resume_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_resumed boolean;
BEGIN
    PERFORM flow_check_queue(p_queue);
    UPDATE flow_queues AS q SET paused = false WHERE q.queue = p_queue AND q.paused;
    v_resumed := FOUND;
    IF v_resumed THEN
        PERFORM flow_notify_idle(ARRAY[p_queue]);
    END IF;
    RETURN v_resumed;
END
$$;

CREATE FUNCTION flow_set_queue_limits(
    p_queue text, p_max_running integer DEFAULT NULL, p_max_per_key integer DEFAULT NULL,
    p_rate_limit integer DEFAULT NULL, p_rate_interval interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_check_queue(p_queue);
    IF p_max_running < 0 OR p_max_per_key < 1 OR p_rate_limit < 0 THEN
        PERFORM flow_raise_argument('p_max_running', 'a limit cannot be that small');
    ELSIF (p_rate_limit IS NULL) <> (p_rate_interval IS NULL) OR p_rate_interval <= '0'
        OR p_rate_interval > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_rate_interval',
            'a rate has a limit and an interval longer than nothing, at most 1000 years');
    END IF;
    INSERT INTO flow_queues AS q (queue, max_running, max_per_key, rate_limit, rate_interval)
    VALUES (p_queue, p_max_running, p_max_per_key, p_rate_limit, p_rate_interval)
        ON CONFLICT (queue) DO UPDATE
       SET max_running = excluded.max_running, max_per_key = excluded.max_per_key,
           rate_limit = excluded.rate_limit, rate_interval = excluded.rate_interval,
           rate_started_at = 'epoch', rate_used = 0;
END
$$;

CREATE FUNCTION flow_check_queue(p_queue text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'it must be 1 to 255 bytes, not blank');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_pause_queue(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_resume_queue(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION
    flow_set_queue_limits(text, integer, integer, integer, interval) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_queue(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_pause_queue(text) IS 'Nothing is claimed from the queue any more.';
COMMENT ON FUNCTION flow_resume_queue(text) IS 'The queue is claimed from again.';
COMMENT ON FUNCTION flow_set_queue_limits(text, integer, integer, integer, interval)
    IS 'Limits how many tasks of a queue are at work, and how often they are claimed.';
COMMENT ON FUNCTION flow_check_queue(text) IS 'Refuses a queue name that is blank or too long.';
