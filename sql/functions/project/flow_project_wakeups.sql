-- flow_project_wakeups: brings scheduled_wakeups up to date with newly stored events.
-- Arguments: p_events, all of them; p_flags, the union of their flow_event_flags; p_run_ids, their
--   runs. Only the last event about a subject counts.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_project_wakeups(
    p_events flow_event_fact[], p_flags integer, p_run_ids text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    IF p_flags & 48 <> 0 THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND flow_clears(e.event_type);
        -- few steps give heartbeats, and their rows have gone by now
        IF EXISTS (SELECT FROM flow_step_heartbeats AS h WHERE h.run_id = ANY (p_run_ids)) THEN
            DELETE FROM flow_step_heartbeats AS h
                  USING unnest(p_events) AS e
                  WHERE h.run_id = e.run_id AND flow_clears(e.event_type);
        END IF;
    END IF;
    IF p_flags & 8 <> 0 THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND w.subject_id = e.subject_id
                AND w.kind = flow_wakeup_kind(e.event_type)
                AND e.flags = 8;
    END IF;
    -- most appends hold step events and few runs have a delayed retry, or a step in another queue:
    -- look once a run, not once an event
    IF p_flags & 1 <> 0 AND EXISTS (
        SELECT FROM scheduled_wakeups AS w
         WHERE w.run_id = ANY (p_run_ids) AND w.kind IN ('step_retry', 'step_deadline'))
    THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND w.subject_id = e.subject_id
                AND CASE w.kind WHEN 'step_retry' THEN e.flags = 1
                                WHEN 'step_deadline' THEN e.flags & 1 <> 0 END;
        -- an append with a delayed retry of its own has no bundle
        DELETE FROM scheduled_wakeups AS w
              USING (SELECT l.run_id, u.subject_id, u.event_type
                       FROM (SELECT e.run_id, e.sequence FROM unnest(p_events) AS e
                              WHERE e.event_type IS NULL) AS b
                      CROSS JOIN LATERAL (
                            SELECT f.run_id, f.sequence, f.payload, f.event_count
                              FROM flow_event_log AS f
                             WHERE f.run_id = b.run_id AND f.sequence = b.sequence LIMIT 1) AS l
                      CROSS JOIN LATERAL flow_unbundle(l.payload, l.sequence, l.event_count) AS u
                    ) AS s
              WHERE w.run_id = s.run_id AND w.subject_id = s.subject_id
                AND w.kind IN ('step_retry', 'step_deadline') AND s.event_type <> 'step_created';
    END IF;
    IF p_flags & 2 = 0 THEN
        RETURN;
    END IF;

    INSERT INTO scheduled_wakeups AS w (run_id, kind, subject_id, due_at)
    SELECT DISTINCT ON (c.run_id, c.kind, c.subject_id) c.run_id, c.kind, c.subject_id, c.due_at
      FROM (SELECT e.run_id, e.kind, e.subject_id, e.sequence, e.due_at, e.flags,
                   max(e.sequence) FILTER (WHERE e.flags & 48 <> 0)
                       OVER (PARTITION BY e.run_id) AS cleared_at,
                   max(e.sequence) FILTER (WHERE e.flags IN (1, 8))
                       OVER (PARTITION BY e.run_id, e.kind, e.subject_id) AS settled_at
              FROM (SELECT f.run_id COLLATE "C" AS run_id, f.subject_id COLLATE "C" AS subject_id,
                           f.sequence, f.due_at, flow_wakeup_kind(f.event_type) AS kind,
                           f.flags
                      FROM unnest(p_events) AS f OFFSET 0) AS e
             WHERE e.flags & 59 <> 0) AS c
     WHERE c.due_at IS NOT NULL AND c.flags & 2 <> 0
       AND c.sequence > coalesce(greatest(c.cleared_at, c.settled_at), 0)
     ORDER BY c.run_id, c.kind, c.subject_id, c.sequence DESC
        ON CONFLICT (run_id, kind, subject_id) DO UPDATE
       SET due_at = excluded.due_at, dispatched_at = NULL;
    PERFORM flow_lower_mark('', (SELECT min(e.due_at) FROM unnest(p_events) AS e));
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_wakeups(flow_event_fact[], integer, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_wakeups(flow_event_fact[], integer, text[])
    IS 'Brings scheduled_wakeups up to date with newly stored events.';
