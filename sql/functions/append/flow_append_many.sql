-- flow_append_many: appends events to many runs in one call; the form that workers use.
-- Arguments: p_batch, a JSON array of at most 1000 elements, one a run:
--   {"run_id": text, "expected": n or null, "epoch": n or null,
--    "events": [{"type", "subject"?, "due_at"? (RFC 3339), "due_in_us"? (microseconds from the
--                append), "payload": {...}, "event_id"? (uuid)}],
--    "steps"?: a bundle as flow_unbundle takes it, of step events that stand together, and
--    "before"?: how many of the events come before them, 0 by default;
--    "release"?: wake count seen by the lease's holder, "queue"?: text, for a run that is created}
--   expected null appends at the head; epoch is the fence; an empty events array only releases.
-- Returns one row an element, in order. outcome: appended, event_conflict, lease_lost,
--   run_terminal, run_not_found, hook_token_conflict, link_not_found, invalid (run_conflict is
--   reserved). A refused element changes nothing and does not touch the others. detail never holds
--   a token.
-- Locks, in order: retention guard (shared), run locks (also of linked runs), token locks, rows.
-- SQLSTATEs: WF010 when p_batch is not such an array. Callers: worker.
CREATE FUNCTION flow_append_many(p_batch json)
RETURNS TABLE (
    ordinal integer, run_id text, outcome text, head_sequence bigint, recorded_at timestamptz,
    released boolean, wakes bigint, detail json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_elements flow_append_element[] := flow_append_parse(p_batch);
    v_verdicts flow_append_verdict[];
    v_bases bigint[];
    v_at timestamptz;
    v_released text[];
    v_kept text[];
    v_kept_wakes bigint[];
    v_has_tokens boolean;
    v_has_links boolean;
    v_has_release boolean;
    v_reserves boolean;
    v_runs text[];
    v_linked text[];
BEGIN
    IF v_elements IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(e.run_id), bool_or(e.has_token), bool_or(e.has_link),
           bool_or(e.release IS NOT NULL),
           bool_or(e.creates AND (e.queue <> 'default' OR flow_is_repeatable()))
      INTO v_runs, v_has_tokens, v_has_links, v_has_release, v_reserves
      FROM unnest(v_elements) AS e;
    IF v_has_links THEN
        v_linked := ARRAY(
            SELECT v.linked_run_id
              FROM unnest(v_elements) AS e CROSS JOIN LATERAL unnest(e.events) AS v
             WHERE v.linked_run_id IS NOT NULL);
    END IF;
    PERFORM flow_lock_runs(v_runs || v_linked);
    IF v_has_tokens THEN
        PERFORM flow_lock_tokens(ARRAY(
            SELECT v.token
              FROM unnest(v_elements) AS e CROSS JOIN LATERAL unnest(e.events) AS v
             WHERE v.token IS NOT NULL));
    END IF;

    v_at := flow_now();
    v_verdicts := flow_append_check(v_elements);
    IF v_has_tokens OR v_has_links THEN
        v_verdicts := flow_append_check_claims(v_elements, v_verdicts);
    END IF;
    SELECT array_agg(CASE WHEN d.outcome = 'appended' THEN coalesce(d.base, 0) END)
      INTO v_bases
      FROM unnest(v_verdicts) AS d;
    IF v_reserves THEN
        -- usually the trigger makes the rows of new runs; see there for what needs them before that
        PERFORM flow_reserve_runs(array_agg(e.run_id), array_agg(e.queue), v_at)
           FROM unnest(v_elements) AS e
          WHERE e.creates AND v_bases[e.ordinal] IS NOT NULL
         HAVING count(*) > 0;
    END IF;
    PERFORM flow_append_write(v_elements, v_bases, v_at);

    IF v_has_release THEN
        SELECT array_agg(f.run_id) FILTER (WHERE f.released),
               array_agg(f.run_id) FILTER (WHERE NOT f.released),
               array_agg(f.wakes) FILTER (WHERE NOT f.released)
          INTO v_released, v_kept, v_kept_wakes
          FROM (SELECT array_agg(e.run_id) AS run_ids, array_agg(e.epoch) AS epochs,
                       array_agg(e.release) AS seen
                  FROM unnest(v_elements) AS e
                 WHERE e.release IS NOT NULL AND v_bases[e.ordinal] IS NOT NULL) AS a
         CROSS JOIN LATERAL flow_release(a.run_ids, a.epochs, a.seen) AS f;
    END IF;

    RETURN QUERY
    SELECT d.ordinal, d.run_id, d.outcome,
           CASE WHEN d.outcome = 'appended' THEN coalesce(d.base, 0) + d.event_count
                ELSE coalesce(d.base, 0) END,
           v_at,
           coalesce(v_has_release AND d.outcome = 'appended' AND d.run_id = ANY (v_released),
               false),
           coalesce(CASE WHEN v_has_release
                         THEN v_kept_wakes[array_position(v_kept, d.run_id)] END, 0),
           d.detail
      FROM unnest(v_elements, v_verdicts) AS d (
               ordinal, run_id, expected, epoch, release, queue, event_count, creates, has_token,
               has_link, refusal, events, outcome, base, is_terminal, detail);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_many(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_many(json) IS 'Appends events to many runs in one call.';
