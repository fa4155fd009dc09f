-- flow_queue_room: how many tasks of a queue may be claimed now.
-- Arguments: p_queue; p_limit, what the claim wants; p_now.
-- Returns room, 0 to p_limit; max_per_key, null without such a limit; keys and held, the live
--   leases of each concurrency key, when there is such a limit.
-- Slots are counted from live leases, so one whose holder died is free when its lease has expired.
--   The row of a queue with limits stays locked until the claim is committed: the next claim counts
--   what this one took. Meanwhile others pass the queue over.
-- Locks: the row of the queue, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_queue_room(
    p_queue text, p_limit integer, p_now timestamptz,
    OUT room integer, OUT max_per_key integer, OUT keys text[], OUT held bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue record;
BEGIN
    room := p_limit;
    SELECT q.paused, q.max_running, q.max_per_key, q.rate_limit INTO v_queue
      FROM flow_queues AS q WHERE q.queue = p_queue;
    IF NOT FOUND THEN
        RETURN;
    ELSIF v_queue.paused THEN
        room := 0;
        RETURN;
    ELSIF v_queue.max_running IS NULL AND v_queue.max_per_key IS NULL
        AND v_queue.rate_limit IS NULL
    THEN
        RETURN;
    END IF;
    SELECT q.paused, q.max_running, q.max_per_key, q.rate_limit, q.rate_interval,
           q.rate_started_at, q.rate_used
      INTO v_queue
      FROM flow_queues AS q WHERE q.queue = p_queue FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR v_queue.paused THEN
        room := 0;
        RETURN;
    END IF;
    IF v_queue.rate_limit IS NOT NULL THEN
        room := least(room, v_queue.rate_limit - CASE
            WHEN p_now >= v_queue.rate_started_at + v_queue.rate_interval
                OR p_now < v_queue.rate_started_at THEN 0
            ELSE v_queue.rate_used END);
    END IF;
    IF v_queue.max_running IS NOT NULL THEN
        room := least(room, v_queue.max_running - (
            SELECT count(*) FROM flow_tasks AS t
             WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
               AND t.lease_expires_at > p_now)::integer);
    END IF;
    room := greatest(room, 0);
    max_per_key := v_queue.max_per_key;
    IF max_per_key IS NOT NULL AND room > 0 THEN
        SELECT array_agg(k.concurrency_key), array_agg(k.n) INTO keys, held
          FROM (SELECT t.concurrency_key, count(*) AS n
                  FROM flow_tasks AS t
                 WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
                   AND t.lease_expires_at > p_now AND t.concurrency_key IS NOT NULL
                 GROUP BY t.concurrency_key) AS k;
    END IF;
END
$$;

-- Counts claims against the rate of their queue; its row is locked by flow_queue_room.
CREATE FUNCTION flow_count_claims(p_queue text, p_count integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE flow_queues AS q
       SET rate_used = p_count + CASE
               WHEN p_now >= q.rate_started_at + q.rate_interval OR p_now < q.rate_started_at THEN 0
               ELSE q.rate_used END,
           rate_started_at = CASE
               WHEN p_now >= q.rate_started_at + q.rate_interval OR p_now < q.rate_started_at
               THEN p_now ELSE q.rate_started_at END
     WHERE q.queue = p_queue AND q.rate_limit IS NOT NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_queue_room(text, integer, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_count_claims(text, integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_queue_room(text, integer, timestamptz)
    IS 'How many tasks of a queue may be claimed now.';
COMMENT ON FUNCTION flow_count_claims(text, integer, timestamptz)
    IS 'Counts claims against the rate of their queue.';
