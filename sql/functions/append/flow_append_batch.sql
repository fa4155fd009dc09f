-- flow_append_batch: flow_append_many with an answer of one row, for clients that send many:
--   reading rows is what they spend most on.
-- Arguments: p_batch, as flow_append_many takes it.
-- Returns one row: the time of all events; marks, one letter an element in order, r where a lease
--   was given back, else a; heads, the JSON array of the heads; exceptions, null or a JSON array of
--   [ordinal, outcome, wakes, detail] of the elements that were refused or whose run was woken
--   before it could be given back. Time, marks and heads of an empty batch are null.
-- Locks and SQLSTATEs: as flow_append_many. Callers: worker.
CREATE FUNCTION flow_append_batch(p_batch json)
RETURNS TABLE (recorded_at timestamptz, marks text, heads text, exceptions text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    -- the rows come in the order of the elements, and the aggregates read them in that order
    RETURN QUERY
    SELECT min(a.recorded_at),
           string_agg(CASE WHEN a.released THEN 'r' ELSE 'a' END, ''),
           '[' || string_agg(a.head_sequence::text, ',') || ']',
           (json_agg(json_build_array(a.ordinal, a.outcome, a.wakes, a.detail))
               FILTER (WHERE a.outcome <> 'appended' OR a.wakes > 0))::text
      FROM flow_append_many(p_batch) AS a;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_batch(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_batch(json)
    IS 'Appends events to many runs in one call, with an answer of one row.';
