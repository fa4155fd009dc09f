-- flow_project_created: makes the rows of runs that begin, each with name, version and build of its
-- spec.
-- Arguments: p_changes, one a run; those that create no run are left out.
-- Returns the runs that were made. One that is there already is not among them, unless its row has
--   head 0: such a row was reserved in this transaction, and is filled in.
-- The runs of a batch are often of one workflow: its spec is looked into once, and a payload that
--   begins with the same text has the same spec, unless a later member could be another "spec".
-- There is no ON CONFLICT: it makes a speculative row and a second WAL record of each. The key of
--   flow_event_log, written before, keeps two writers of one run apart.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: WF009, WF013. Callers: internal.
CREATE FUNCTION flow_project_created(p_changes flow_run_change[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_spec json;
    v_head text;
    v_next text;
    v_name text;
    v_version text;
    v_build text;
    v_made text[];
    v_filled text[];
    v_one flow_run_change;
BEGIN
    SELECT flow_json_get(c.create_payload, 'spec') INTO v_spec
      FROM unnest(p_changes) AS c WHERE c.flags & 64 <> 0 LIMIT 1;
    v_name := flow_json_get_text(v_spec, 'name');
    v_version := flow_json_get_text(v_spec, 'version');
    v_build := flow_json_get_text(v_spec, 'runtime_build');
    IF flow_spec_is_named(v_name, v_version) THEN
        -- in the order of bytes, what begins with the first is between the two
        v_head := '{"spec":' || v_spec::text || ',';
        v_next := '{"spec":' || v_spec::text || '-';
        v_one := p_changes[1];
        IF cardinality(p_changes) = 1 AND v_one.flags = 64 AND flow_run_id_is_valid(v_one.run_id)
        THEN
            -- one run that begins and does no more: to get the statement below ready costs more
            -- than the row does
            PERFORM FROM flow_runs AS f WHERE f.run_id = v_one.run_id;
            IF NOT FOUND THEN
                INSERT INTO flow_runs (run_id, workflow_name, workflow_version, runtime_build,
                    status, head_sequence, created_at, updated_at)
                VALUES (v_one.run_id, v_name, v_version, v_build, 'pending',
                    v_one.last_sequence, v_one.created_at, v_one.recorded_at);
                RETURN ARRAY[v_one.run_id];
            END IF;
        END IF;
    END IF;

    WITH made AS (
        INSERT INTO flow_runs AS r (run_id, workflow_name, workflow_version, runtime_build, status,
            head_sequence, created_at, updated_at, ended_at)
        SELECT CASE WHEN flow_run_id_is_valid(c.run_id)
                         AND (k.is_same OR flow_spec_is_named(s.name, s.version))
                    THEN c.run_id ELSE flow_refuse_spec(c.run_id, c.create_payload) END,
               s.name, s.version, s.build,
               flow_created_status(c.run_id, c.flags, c.terminal_status),
               c.last_sequence, c.created_at, c.recorded_at,
               CASE WHEN c.terminal_status IS NOT NULL THEN c.recorded_at END
          FROM unnest(p_changes) AS c
         CROSS JOIN LATERAL (
                SELECT coalesce(t.payload COLLATE "C" >= v_head AND t.payload COLLATE "C" < v_next
                       AND strpos(t.payload, chr(92)) = 0
                       AND octet_length(replace(t.payload, '"spec"', ''))
                           = octet_length(t.payload) - 6, false) AS is_same
                  FROM (SELECT c.create_payload::text AS payload OFFSET 0) AS t OFFSET 0) AS k
         CROSS JOIN LATERAL (
                SELECT CASE WHEN NOT k.is_same THEN flow_json_get(c.create_payload, 'spec')
                       END AS spec OFFSET 0) AS p
         CROSS JOIN LATERAL (
                SELECT CASE WHEN k.is_same THEN v_name
                            ELSE flow_json_get_text(p.spec, 'name') END AS name,
                       CASE WHEN k.is_same THEN v_version
                            ELSE flow_json_get_text(p.spec, 'version') END AS version,
                       CASE WHEN k.is_same THEN v_build
                            ELSE flow_json_get_text(p.spec, 'runtime_build') END AS build
                OFFSET 0) AS s
          LEFT JOIN LATERAL (
                SELECT true AS is_there FROM flow_runs AS f
                 WHERE f.run_id = c.run_id LIMIT 1) AS o ON true
         WHERE c.flags & 64 <> 0 AND o.is_there IS NULL
        RETURNING r.run_id
    )
    SELECT coalesce(array_agg(m.run_id), '{}') INTO v_made FROM made AS m;
    IF cardinality(v_made) = cardinality(p_changes) THEN
        RETURN v_made;
    END IF;

    WITH filled AS (
        UPDATE flow_runs AS r
           SET workflow_name = s.name, workflow_version = s.version, runtime_build = s.build,
               status = flow_created_status(c.run_id, c.flags, c.terminal_status),
               head_sequence = c.last_sequence, created_at = c.created_at,
               updated_at = c.recorded_at,
               ended_at = CASE WHEN c.terminal_status IS NOT NULL THEN c.recorded_at END
          FROM unnest(p_changes) AS c
         CROSS JOIN LATERAL (
                SELECT CASE WHEN flow_run_id_is_valid(c.run_id)
                                 AND flow_spec_is_named(f.name, f.version)
                            THEN f.name ELSE flow_refuse_spec(c.run_id, c.create_payload)
                       END AS name, f.version, f.build
                  FROM (SELECT flow_json_get_text(p.spec, 'name') AS name,
                               flow_json_get_text(p.spec, 'version') AS version,
                               flow_json_get_text(p.spec, 'runtime_build') AS build
                          FROM (SELECT flow_json_get(c.create_payload, 'spec') AS spec OFFSET 0)
                               AS p OFFSET 0) AS f
                OFFSET 0) AS s
         WHERE c.flags & 64 <> 0 AND r.run_id = c.run_id AND r.head_sequence = 0
        RETURNING r.run_id
    )
    SELECT array_agg(f.run_id) INTO v_filled FROM filled AS f;
    RETURN v_made || v_filled;
END
$$;

-- Whether a run can be listed under this name and version.
CREATE FUNCTION flow_spec_is_named(p_name text, p_version text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN btrim(p_name) <> '' AND char_length(p_name) <= 255
   AND btrim(p_version) <> '' AND char_length(p_version) <= 255;

-- The status of a run after the append that created it.
CREATE FUNCTION flow_created_status(p_run_id text, p_flags integer, p_terminal_status text)
RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN p_terminal_status IS NOT NULL THEN p_terminal_status
    WHEN p_flags & 16 <> 0 THEN 'cancelling'
    WHEN p_flags & 128 = 0 THEN 'pending'
    WHEN p_flags & 6 <> 0 AND flow_has_suspension(p_run_id) THEN 'suspended'
    ELSE 'running'
END;

REVOKE EXECUTE ON FUNCTION flow_project_created(flow_run_change[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_spec_is_named(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_created_status(text, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_created(flow_run_change[])
    IS 'Makes the rows of runs that begin.';
COMMENT ON FUNCTION flow_spec_is_named(text, text)
    IS 'Whether a run can be listed under this name and version.';
COMMENT ON FUNCTION flow_created_status(text, integer, text)
    IS 'The status of a run after the append that created it.';
