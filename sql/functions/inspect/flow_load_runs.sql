-- flow_load_runs: whole histories for the drivers of these runs, one row a run that exists.
-- Arguments: p_run_ids. events is the text of a JSON array of [sequence, event_type, event_id,
--   recorded_at (RFC 3339, UTC), payload] in order: one value to send and one text to decode.
--   wakes is null without an open drive task. db_now is the clock at the read.
-- Locks: none. SQLSTATEs: none. Callers: worker, client.
CREATE FUNCTION flow_load_runs(p_run_ids text[])
RETURNS TABLE (
    run_id text, head_sequence bigint, status text, lease_epoch bigint, wakes bigint,
    db_now timestamptz, events text
)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT r.run_id, r.head_sequence, r.status, r.lease_epoch, t.wakes, c.db_now, h.events
      FROM (SELECT flow_now() AS db_now) AS c
     CROSS JOIN unnest(p_run_ids) AS i (run_id)
      JOIN flow_runs AS r ON r.run_id = i.run_id
      LEFT JOIN flow_tasks AS t ON t.run_id = r.run_id AND t.kind = 'drive_run'
     CROSS JOIN LATERAL (
           SELECT '[' || coalesce(string_agg(
                      '[' || e.sequence || ',' || to_json(e.event_type) || ',"' || e.event_id
                          || '","' || flow_time_text(e.recorded_at) || '",' || e.payload || ']',
                      ',' ORDER BY e.sequence), '') || ']' AS events
             FROM flow_events AS e
            WHERE e.run_id = r.run_id) AS h
$$;

REVOKE EXECUTE ON FUNCTION flow_load_runs(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_load_runs(text[]) IS 'Whole histories for the drivers of these runs.';
