-- flow_notify_idle: tells listeners that queues have work, if somebody said that it is idle.
--   flow_notify_idle(queues)   what everybody who enqueues calls
--   flow_channel()             the name of the channel, for LISTEN on a direct connection
-- The hint is taken away with the notification, so a fleet that is busy is told nothing: it finds
-- its work by claiming. The payload is the name of the queue and nothing else. Nobody waits here:
-- where another transaction holds the hint, and that may be one that stays open for long, or where
-- this one cannot write it because it keeps one snapshot, a notification is sent all the same.
-- Arguments: p_queues. Locks: rows of flow_idle_queues, only when free. SQLSTATEs: none.
-- Callers: internal; flow_channel: client, worker.
CREATE FUNCTION flow_notify_idle(p_queues text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_idle text[];
BEGIN
    SELECT array_agg(i.queue) INTO v_idle
      FROM flow_idle_queues AS i
     WHERE i.queue = ANY (p_queues) AND i.idle_until > v_now;
    IF v_idle IS NULL THEN
        RETURN;
    END IF;
    IF NOT flow_is_repeatable() THEN
        UPDATE flow_idle_queues AS i
           SET idle_until = NULL, notified_at = v_now
          FROM (SELECT f.queue FROM flow_idle_queues AS f
                 WHERE f.queue = ANY (v_idle) AND f.idle_until > v_now
                 ORDER BY f.queue
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE i.queue = free.queue;
    END IF;
    PERFORM pg_notify(flow_channel(), t.queue)
       FROM unnest(v_idle) AS t (queue)
      WHERE NOT EXISTS (SELECT FROM flow_queues AS q WHERE q.queue = t.queue AND NOT q.notify);
END
$$;

CREATE FUNCTION flow_channel() RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT 'flow_' || left(md5(current_schema()), 16)
$$;

REVOKE EXECUTE ON FUNCTION flow_notify_idle(text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_channel() FROM PUBLIC;
COMMENT ON FUNCTION flow_notify_idle(text[]) IS 'Tells idle listeners that queues have work.';
COMMENT ON FUNCTION flow_channel() IS 'Name of the channel to listen on.';
