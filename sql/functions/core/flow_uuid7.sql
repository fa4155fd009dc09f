-- flow_uuid7: a new UUID of version 7, its first 48 bits the database clock in milliseconds.
-- Arguments: none. Locks: none. SQLSTATEs: none. Callers: internal; handy in psql.
CREATE FUNCTION flow_uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
    SELECT (lpad(to_hex((extract(epoch FROM flow_now()) * 1000)::bigint), 12, '0')
            || '7' || substr(r.hex, 14))::uuid
      FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS hex) AS r
$$;

REVOKE EXECUTE ON FUNCTION flow_uuid7() FROM PUBLIC;
COMMENT ON FUNCTION flow_uuid7() IS 'A new UUID of version 7.';
