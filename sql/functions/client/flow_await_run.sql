-- flow_await_run: says that somebody waits for the end of a run, and whether it has ended already.
--   flow_await_run(run, for)    asks to be told; to be repeated before p_for is over
--   flow_ended_channel()        the name of the channel, for LISTEN on a direct connection
--   flow_tell_ended(runs)       what ends runs calls: tells whoever waits for them
-- What is notified is the first 16 digits of the MD5 of the run id. It may get lost, so whoever
-- waits looks now and then. An end that is being committed while this is called is not told either:
-- look once more a moment later.
-- Arguments: p_run_id; p_for, at most ten minutes; p_run_ids, runs that this transaction has ended.
-- Locks: rows of flow_run_waiters. SQLSTATEs: WF001, WF010.
-- Callers: client, worker; flow_tell_ended: internal.
CREATE FUNCTION flow_await_run(p_run_id text, p_for interval DEFAULT '1 minute') RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_status text;
BEGIN
    IF p_for IS NULL OR p_for NOT BETWEEN interval '0' AND interval '10 minutes' THEN
        PERFORM flow_raise_argument('p_for', 'it must be from nothing to ten minutes');
    END IF;
    SELECT r.status INTO v_status
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    ELSIF flow_is_terminal(v_status) THEN
        RETURN true;
    END IF;
    INSERT INTO flow_run_waiters AS w (run_id, waited_until)
    VALUES (p_run_id, v_now + p_for)
        ON CONFLICT (run_id) DO UPDATE SET waited_until = excluded.waited_until
     WHERE w.waited_until < v_now + p_for / 2;
    -- it may have ended between the look and the row
    SELECT r.status INTO v_status FROM flow_runs AS r WHERE r.run_id = p_run_id;
    IF coalesce(flow_is_terminal(v_status), true) THEN
        DELETE FROM flow_run_waiters AS w WHERE w.run_id = p_run_id;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION flow_tell_ended(p_run_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_awaited text[];
BEGIN
    IF flow_is_repeatable() THEN
        SELECT array_agg(w.run_id) INTO v_awaited
          FROM flow_run_waiters AS w
         WHERE w.run_id = ANY (p_run_ids) AND w.waited_until > flow_now();
    ELSE
        WITH gone AS (
            DELETE FROM flow_run_waiters AS w
             WHERE w.run_id = ANY (p_run_ids)
            RETURNING w.run_id, w.waited_until
        )
        SELECT array_agg(g.run_id) INTO v_awaited FROM gone AS g WHERE g.waited_until > flow_now();
    END IF;
    PERFORM pg_notify(flow_ended_channel(), left(md5(u.run_id), 16))
       FROM unnest(v_awaited) AS u (run_id);
END
$$;

CREATE FUNCTION flow_ended_channel() RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT flow_channel() || '_ended'
$$;

REVOKE EXECUTE ON FUNCTION flow_await_run(text, interval) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_tell_ended(text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_ended_channel() FROM PUBLIC;
COMMENT ON FUNCTION flow_await_run(text, interval)
    IS 'Says that somebody waits for the end of a run.';
COMMENT ON FUNCTION flow_tell_ended(text[]) IS 'Tells whoever waits for the end of runs.';
COMMENT ON FUNCTION flow_ended_channel() IS 'Name of the channel of runs that ended.';
