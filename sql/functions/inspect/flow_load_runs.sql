-- flow_load_runs: histories, for drivers.
-- Arguments: p_run_ids; unknown runs are left out. p_after, null or one entry a run: only the
--   events after that sequence; a missing entry means the whole history.
-- Returns one row a run: head, status, lease epoch, wake count (0 without a task), the database
--   time, and events, the text of a JSON array in order of
--   [sequence, type, event id, recorded at (RFC 3339, UTC, microseconds), payload], with a sixth
--   item where the wire named a schema version.
--   All of it is one moment: a wake that is not counted here comes with events that are not here.
-- Locks: none. SQLSTATEs: none. Callers: worker, reader.
CREATE FUNCTION flow_load_runs(p_run_ids text[], p_after bigint[] DEFAULT NULL)
RETURNS TABLE (
    run_id text, head_sequence bigint, status text, lease_epoch bigint, wakes bigint,
    db_now timestamptz, events text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT r.run_id, r.head_sequence, r.status, r.lease_epoch, coalesce(t.wakes, 0), v_now, h.events
      FROM (SELECT u.run_id, min(coalesce(u.after, 0)) AS after
              FROM unnest(p_run_ids, p_after) AS u (run_id, after)
             WHERE u.run_id IS NOT NULL
             GROUP BY u.run_id) AS i
     CROSS JOIN LATERAL (
            SELECT f.run_id, f.head_sequence, f.status, f.lease_epoch
              FROM flow_runs AS f WHERE f.run_id = i.run_id AND f.head_sequence > 0 LIMIT 1) AS r
      LEFT JOIN LATERAL (
            SELECT f.wakes FROM flow_tasks AS f
             WHERE f.run_id = i.run_id AND f.kind = 'drive_run' LIMIT 1) AS t ON true
     CROSS JOIN LATERAL (
            SELECT '[' || coalesce(string_agg(CASE
                       WHEN e.event_type IS NULL THEN (
                           SELECT string_agg('[' || u.sequence || ',"' || u.event_type || '","'
                                      || flow_event_id(e.run_id, u.sequence) || e.at_text
                                      || u.payload || ']', ',')
                             FROM flow_unbundle(e.payload, e.sequence, e.event_count) AS u
                            WHERE u.sequence > i.after)
                       ELSE '[' || e.sequence || ',' || to_json(e.event_type) || ',"'
                           || coalesce(e.event_id, flow_event_id(e.run_id, e.sequence)) || e.at_text
                           || e.payload || coalesce(',' || e.schema_version, '') || ']'
                       END, ','), '') || ']' AS events
              FROM (SELECT f.run_id, f.sequence, f.event_type, f.event_id, f.payload, f.event_count,
                           f.schema_version,
                           '","' || flow_time_text(f.recorded_at) || '",' AS at_text
                      FROM flow_event_log AS f
                     WHERE f.run_id = i.run_id AND f.sequence > i.after
                     ORDER BY f.sequence
                    OFFSET 0) AS e) AS h;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_load_runs(text[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_load_runs(text[], bigint[])
    IS 'Histories, whole or after a sequence, for drivers.';
