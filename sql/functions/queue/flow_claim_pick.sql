-- flow_claim_pick: picks and locks the next tasks of one queue for a claim.
-- Arguments: p_queue, p_limit, p_now, p_filter as in flow_claim_candidates.
-- Returns at most p_limit tasks, in the order of claiming. A run that is busy is passed over, so it
--   looks again until there is enough or nothing left. Tasks whose lease expired once too often
--   become dead letters on the way.
-- Locks: the row of the queue, queue rows and run locks, all only when free.
-- SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_claim_pick(
    p_queue text, p_limit integer, p_now timestamptz, p_filter flow_claim_filter
) RETURNS SETOF flow_claim_candidate
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_room record;
    v_full text[] := '{}';
    v_found flow_claim_candidate[];
    v_taken flow_claim_candidate[] := '{}';
    v_seen bigint[] := '{}';
    v_locked text[];
    v_dead bigint[];
BEGIN
    SELECT r.room, r.max_per_key, coalesce(r.keys, '{}') AS keys, coalesce(r.held, '{}') AS held
      INTO v_room FROM flow_queue_room(p_queue, p_limit, p_now) AS r;
    IF v_room.room = 0 THEN
        RETURN;
    END IF;
    PERFORM flow_move_marks(p_queue, p_now);
    -- asked here: to call that for nothing costs as much as half of a claim that finds nothing
    PERFORM FROM flow_marks AS m
      WHERE m.name = p_queue AND m.takes = p_filter.takes
        AND m.moved_at BETWEEN p_now - interval '2 seconds' AND p_now;
    IF NOT FOUND THEN
        PERFORM flow_move_claim_marks(p_queue, p_now, p_filter);
    END IF;
    LOOP
        IF v_room.max_per_key IS NOT NULL THEN
            SELECT coalesce(array_agg(k.key), '{}') INTO v_full
              FROM (SELECT h.key, sum(h.n) AS n
                      FROM (SELECT a.key, a.n FROM unnest(v_room.keys, v_room.held) AS a (key, n)
                            UNION ALL
                            SELECT c.concurrency_key, 1 FROM unnest(v_taken) AS c
                             WHERE c.concurrency_key IS NOT NULL) AS h
                     GROUP BY h.key) AS k
             WHERE k.n >= v_room.max_per_key;
        END IF;
        SELECT array_agg(c), array_agg(c.task_id) FILTER (WHERE c.is_dead),
               v_seen || array_agg(c.task_id)
          INTO v_found, v_dead, v_seen
          FROM flow_claim_candidates(p_queue, v_room.room - cardinality(v_taken), p_now, p_filter,
                                     v_full, v_seen) AS c;
        EXIT WHEN v_found IS NULL;
        v_locked := flow_try_lock_runs(ARRAY(
            SELECT f.run_id FROM unnest(v_found) AS f WHERE f.kind = 'drive_run'));
        IF v_dead IS NOT NULL THEN
            PERFORM flow_bury_tasks(ARRAY(
                SELECT f.task_id FROM unnest(v_found) AS f
                 WHERE f.is_dead AND (f.kind <> 'drive_run' OR f.run_id = ANY (v_locked))), NULL);
        END IF;
        v_taken := v_taken || ARRAY(
            SELECT k.candidate
              FROM (SELECT f AS candidate, f.concurrency_key, f.priority, f.available_at, f.task_id,
                           row_number() OVER (PARTITION BY f.concurrency_key
                               ORDER BY f.priority, f.available_at, f.task_id) AS n
                      FROM unnest(v_found) AS f
                     WHERE NOT f.is_dead
                       AND (f.kind <> 'drive_run' OR f.run_id = ANY (v_locked))) AS k
             WHERE v_room.max_per_key IS NULL OR k.concurrency_key IS NULL
                OR k.n + coalesce((SELECT sum(h.n)
                       FROM (SELECT a.n FROM unnest(v_room.keys, v_room.held) AS a (key, n)
                              WHERE a.key = k.concurrency_key
                              UNION ALL
                             SELECT 1 FROM unnest(v_taken) AS c
                              WHERE c.concurrency_key = k.concurrency_key) AS h), 0)
                   <= v_room.max_per_key
             ORDER BY k.priority, k.available_at, k.task_id);
        EXIT WHEN cardinality(v_taken) >= v_room.room;
    END LOOP;
    IF cardinality(v_taken) > 0 THEN
        PERFORM flow_count_claims(p_queue, cardinality(v_taken), p_now);
        RETURN QUERY
        SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key,
               t.crashed, t.is_dead
          FROM unnest(v_taken) AS t;
    END IF;
END
$$;

-- Who holds, or held until it expired, the leases of these runs and tasks: two arrays, in step.
-- Looked up one by one: with an OR, a plan made while nothing was leased walks all leases.
CREATE FUNCTION flow_lease_holders(
    p_run_ids text[], p_task_ids bigint[], OUT tasks bigint[], OUT owners text[]
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    SELECT array_agg(l.task_id), array_agg(l.lease_owner) INTO tasks, owners
      FROM (SELECT d.task_id, d.lease_owner
              FROM unnest(p_run_ids) AS u (run_id)
             CROSS JOIN LATERAL (
                    SELECT t.task_id, t.lease_owner FROM flow_tasks AS t
                     WHERE t.run_id = u.run_id AND t.kind = 'drive_run'
                       AND t.lease_expires_at IS NOT NULL LIMIT 1) AS d
            UNION ALL
            SELECT o.task_id, o.lease_owner
              FROM unnest(p_task_ids) AS u (task_id)
             CROSS JOIN LATERAL (
                    SELECT t.task_id, t.lease_owner FROM flow_tasks AS t
                     WHERE t.task_id = u.task_id AND t.lease_expires_at IS NOT NULL
                     LIMIT 1) AS o) AS l;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_claim_pick(text, integer, timestamptz, flow_claim_filter) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_lease_holders(text[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_pick(text, integer, timestamptz, flow_claim_filter)
    IS 'Picks and locks the next tasks of one queue for a claim.';
COMMENT ON FUNCTION flow_lease_holders(text[], bigint[])
    IS 'Who holds the leases of these runs and tasks.';
