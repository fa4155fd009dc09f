-- flow_start_runs: starts the runs of checked requests; the one place where runs begin.
-- Arguments: p_requests. Returns one row a request, in order: outcome created, exists, run_conflict
--   or invalid; detail with reason (and sqlstate for invalid).
--   An id that is there already, in the table or earlier among the requests, exists when spec and
--   input say the same, and is a conflict otherwise. A run that has not ended is woken.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. SQLSTATEs: none.
-- Callers: internal.
CREATE FUNCTION flow_start_runs(p_requests flow_start_request[])
RETURNS TABLE (ordinal integer, run_id text, outcome text, head_sequence bigint, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz;
    v_outcomes text[];
    v_reasons text[];
    v_heads bigint[];
    v_woken text[];
    v_one flow_start_request := p_requests[1];
BEGIN
    PERFORM flow_lock_runs(ARRAY(
        SELECT q.run_id FROM unnest(p_requests) AS q WHERE q.refusal IS NULL));
    v_at := flow_now();
    IF cardinality(p_requests) = 1 AND v_one.refusal IS NULL AND v_one.queue = 'default'
       AND NOT flow_is_repeatable()
    THEN
        -- one run that is new: to get the statements below ready costs more than all rows of it
        PERFORM FROM flow_runs AS r WHERE r.run_id = v_one.run_id;
        IF NOT FOUND THEN
            INSERT INTO flow_event_log (run_id, sequence, event_type, payload, recorded_at)
            VALUES (v_one.run_id, 1, 'run_created', v_one.payload::json, v_at);
            PERFORM flow_enqueue_drives(ARRAY[v_one.run_id]);
            RETURN QUERY VALUES (v_one.ordinal, v_one.run_id, 'created', 1::bigint, NULL::json);
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(c.outcome ORDER BY c.ordinal), array_agg(c.reason ORDER BY c.ordinal),
           array_agg(c.head ORDER BY c.ordinal),
           array_agg(c.run_id) FILTER (WHERE c.outcome IN ('created', 'exists')
                                         AND NOT coalesce(flow_is_terminal(c.status), false))
      INTO v_outcomes, v_reasons, v_heads, v_woken
      FROM (
        SELECT s.ordinal, s.run_id, s.status, d.reason,
               CASE WHEN s.refusal IS NOT NULL THEN 0 ELSE coalesce(s.head, 1) END AS head,
               CASE WHEN s.refusal IS NOT NULL THEN 'invalid'
                    WHEN s.payload IS NULL THEN 'created'
                    WHEN d.reason IS NULL THEN 'exists'
                    ELSE 'run_conflict' END AS outcome
          FROM (
            SELECT q.ordinal, q.run_id, q.refusal, q.spec, q.input, q.payload AS wanted,
                   r.head, r.status,
                   coalesce(r.payload, CASE WHEN row_number() OVER same_id > 1
                       THEN first_value(q.payload::json) OVER same_id END) AS payload
              FROM (SELECT u.ordinal, u.run_id, u.refusal, u.spec, u.input, u.payload
                      FROM unnest(p_requests) AS u) AS q
              LEFT JOIN LATERAL (
                    SELECT f.head_sequence AS head, f.status, e.payload
                      FROM flow_runs AS f
                      JOIN flow_event_log AS e ON e.run_id = f.run_id AND e.sequence = 1
                     WHERE f.run_id = q.run_id AND f.head_sequence > 0
                     LIMIT 1) AS r ON q.refusal IS NULL
            WINDOW same_id AS (PARTITION BY q.run_id, q.refusal IS NULL ORDER BY q.ordinal)
          ) AS s
         CROSS JOIN LATERAL (SELECT CASE
                WHEN s.refusal IS NOT NULL OR s.payload IS NULL OR s.payload::text = s.wanted
                    THEN NULL
                WHEN NOT flow_json_equal(flow_json_get(s.payload, 'spec'), s.spec)
                    THEN 'workflow spec differs'
                WHEN NOT flow_json_equal(flow_json_get(s.payload, 'input'), s.input)
                    THEN 'workflow input differs'
            END AS reason) AS d
      ) AS c;
    IF v_outcomes IS NULL THEN
        RETURN;
    END IF;

    PERFORM flow_reserve_runs(array_agg(q.run_id), array_agg(q.queue), v_at)
       FROM unnest(p_requests) AS q
      WHERE v_outcomes[q.ordinal] = 'created'
        AND (q.queue <> 'default' OR flow_is_repeatable())
     HAVING count(*) > 0;
    INSERT INTO flow_event_log (run_id, sequence, event_type, payload, recorded_at)
    SELECT q.run_id, 1, 'run_created', q.payload::json, v_at
      FROM unnest(p_requests) AS q
     WHERE v_outcomes[q.ordinal] = 'created';
    IF v_woken IS NOT NULL THEN
        PERFORM flow_enqueue_drives(v_woken);
    END IF;

    RETURN QUERY
    SELECT q.ordinal, q.run_id, v_outcomes[q.ordinal], v_heads[q.ordinal],
           coalesce(q.refusal, CASE WHEN v_reasons[q.ordinal] IS NOT NULL
               THEN json_build_object('reason', v_reasons[q.ordinal]) END)
      FROM unnest(p_requests) AS q;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_runs(flow_start_request[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_runs(flow_start_request[]) IS 'Starts the runs of checked requests.';
