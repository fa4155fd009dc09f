-- flow_event_id: the id of an event whose writer gave none, derived from its place.
-- Arguments: p_run_id, p_sequence. The same place always gives the same id: a random one would open
--   the random device for every event. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_id(p_run_id text, p_sequence bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN md5(p_run_id || '/' || p_sequence::text)::uuid;

REVOKE EXECUTE ON FUNCTION flow_event_id(text, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_id(text, bigint) IS 'The id of an event whose writer gave none.';
