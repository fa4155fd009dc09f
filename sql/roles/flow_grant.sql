-- flow_grant: gives a role what it needs to work as a worker, a client or a reader.
-- Arguments: p_role, an existing role; p_capability: worker, client or reader (see
--   flow_capabilities). May be repeated, and again after every migration, because new functions
--   belong to their owner alone.
-- The functions run with the rights of their caller, so the role also gets the table privileges
--   that they need. No role gets UPDATE, DELETE or TRUNCATE on flow_events.
-- Locks: none. SQLSTATEs: WF010. Callers: the owner of the schema.
CREATE FUNCTION flow_grant(p_role name, p_capability text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_grant record;
BEGIN
    IF p_capability IS NULL OR p_capability NOT IN ('worker', 'client', 'reader') THEN
        PERFORM flow_raise_argument('p_capability', 'it must be worker, client or reader');
    ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = p_role) THEN
        PERFORM flow_raise_argument('p_role', 'there is no such role');
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), p_role);
    FOR v_grant IN
        SELECT c.name, c.privileges FROM flow_capabilities() AS c
         WHERE c.capability = p_capability AND c.kind = 'table'
    LOOP
        EXECUTE format('GRANT %s ON TABLE %I.%I TO %I',
            v_grant.privileges, current_schema(), v_grant.name, p_role);
    END LOOP;
    FOR v_grant IN
        SELECT p.oid::regprocedure AS signature
          FROM pg_catalog.pg_proc AS p
         WHERE p.pronamespace = current_schema()::regnamespace
           AND p.proname IN (SELECT c.name FROM flow_capabilities() AS c
                              WHERE c.capability = p_capability AND c.kind <> 'table')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_grant.signature, p_role);
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_grant(name, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_grant(name, text)
    IS 'Gives a role what it needs to work as a worker, a client or a reader.';
