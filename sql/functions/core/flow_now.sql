-- flow_now: the only clock of the schema; every deadline, lease and timestamp is compared with it.
-- Arguments: none. Returns the time of the database clock at the call (not of the transaction).
-- Locks: none. SQLSTATEs: none. Callers: everybody.
-- A test role may CREATE OR REPLACE it with one that adds an offset. VOLATILE, so that it can be
-- inlined; no search_path is needed because names in a RETURN body are bound at creation.
CREATE FUNCTION flow_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp();

REVOKE EXECUTE ON FUNCTION flow_now() FROM PUBLIC;
COMMENT ON FUNCTION flow_now() IS 'The only clock of the schema; tests may replace it.';
