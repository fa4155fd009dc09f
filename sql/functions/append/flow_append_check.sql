-- flow_append_check: decides about every element of a batch, under the locks of their runs.
-- Arguments: p_elements, as read from the batch. Returns one verdict an element, in order.
-- The order of the questions: is it well formed; does the run exist; is the lease valid; is the
-- head as expected; has the run ended. flow_append_check_claims asks the rest: do linked runs
-- exist; are tokens free.
-- Locks: none; the caller holds run and token locks. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_check(p_elements flow_append_element[]) RETURNS flow_append_verdict[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_verdicts flow_append_verdict[];
    v_repeats boolean;
    v_runs integer;
BEGIN
    -- nearly always all is well; the words for everything else are looked for only when needed
    SELECT array_agg(ROW('appended', r.head_sequence, false, NULL)::flow_append_verdict
                     ORDER BY e.ordinal),
           count(DISTINCT e.run_id)
      INTO v_verdicts, v_runs
      FROM unnest(p_elements) AS e
      JOIN flow_runs AS r ON r.run_id = e.run_id
     WHERE e.refusal IS NULL AND NOT e.creates
       AND (e.epoch IS NULL OR e.epoch = r.lease_epoch)
       AND (e.expected IS NULL OR e.expected = r.head_sequence)
       AND r.head_sequence > 0
       AND r.status NOT IN ('completed', 'failed', 'cancelled', 'continued_as_new');
    IF v_runs = cardinality(p_elements) THEN
        RETURN v_verdicts;
    END IF;
    SELECT count(DISTINCT e.run_id) < count(e.run_id) INTO v_repeats FROM unnest(p_elements) AS e;
    SELECT array_agg(ROW(c.outcome, c.head, coalesce(c.status
               IN ('completed', 'failed', 'cancelled', 'continued_as_new'), false),
               CASE c.outcome
                   WHEN 'appended' THEN NULL
                   WHEN 'invalid' THEN coalesce(c.refusal, json_build_object('sqlstate', 'WF010',
                       'reason', 'the run occurs more than once in the batch'))
                   WHEN 'event_conflict' THEN json_build_object(
                       'expected', CASE WHEN c.creates THEN 0 ELSE c.expected END,
                       'actual', coalesce(c.head, 0))
                   WHEN 'lease_lost' THEN json_build_object(
                       'epoch', c.epoch, 'current', coalesce(c.lease_epoch, 0))
                   WHEN 'run_terminal' THEN json_build_object('status', c.status)
                   ELSE '{}'::json
               END)::flow_append_verdict ORDER BY c.ordinal)
      INTO v_verdicts
      FROM (
        SELECT e.ordinal, e.creates, e.expected, e.epoch, e.refusal, r.head, r.status,
               r.lease_epoch,
               CASE
                   WHEN e.refusal IS NOT NULL THEN 'invalid'
                   WHEN v_repeats AND EXISTS (
                        SELECT FROM unnest(p_elements) AS o
                         WHERE o.run_id = e.run_id AND o.ordinal < e.ordinal
                           AND o.refusal IS NULL) THEN 'invalid'
                   WHEN r.head IS NULL AND NOT e.creates THEN 'run_not_found'
                   WHEN e.epoch IS NOT NULL AND e.epoch <> coalesce(r.lease_epoch, 0)
                       THEN 'lease_lost'
                   WHEN e.creates AND (r.head IS NOT NULL OR e.expected <> 0)
                       THEN 'event_conflict'
                   WHEN NOT e.creates AND e.expected <> r.head THEN 'event_conflict'
                   WHEN e.event_count > 0
                        AND r.status IN ('completed', 'failed', 'cancelled', 'continued_as_new')
                       THEN 'run_terminal'
                   ELSE 'appended'
               END AS outcome
          FROM unnest(p_elements) AS e
          LEFT JOIN LATERAL (
                SELECT f.head_sequence AS head, f.status, f.lease_epoch
                  FROM flow_runs AS f
                 WHERE f.run_id = e.run_id AND f.head_sequence > 0
                 LIMIT 1) AS r ON true
      ) AS c;
    RETURN v_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check(flow_append_element[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check(flow_append_element[])
    IS 'Decides about every element of an append batch.';
