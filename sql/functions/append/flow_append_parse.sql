-- flow_append_parse: reads a batch of appends; never raises for what is wrong with one element.
-- Arguments: p_batch, the array that flow_append_many takes, at most 1000 elements.
-- Locks: none. SQLSTATEs: WF010 when the batch is not an array, or too long. Callers: internal.
CREATE FUNCTION flow_append_parse(p_batch json) RETURNS flow_append_element[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_shielded boolean := flow_json_is_hard(p_batch::text);
    v_batch json := p_batch;
    v_elements flow_append_element[];
    v_one flow_append_element[];
    v_element json;
    v_ordinal integer := 0;
BEGIN
    IF p_batch IS NULL OR json_typeof(p_batch) <> 'array' THEN
        PERFORM flow_raise_argument('p_batch', 'it must be a JSON array of appends');
    END IF;
    IF v_shielded THEN
        v_batch := flow_json_shield(p_batch::text)::json;
    END IF;
    BEGIN
        v_elements := flow_append_read(v_batch, v_shielded);
    EXCEPTION WHEN data_exception THEN
        -- some element is malformed: find out which
        v_elements := NULL;
        FOR v_element IN SELECT a.element FROM json_array_elements(v_batch) AS a (element) LOOP
            v_ordinal := v_ordinal + 1;
            BEGIN
                v_one := flow_append_read(('[' || v_element::text || ']')::json, v_shielded);
                v_one[1].ordinal := v_ordinal;
            EXCEPTION WHEN data_exception THEN
                v_one := ARRAY[ROW(v_ordinal, flow_append_run_id(v_element, v_shielded), NULL, NULL,
                    NULL, NULL, 0, false, false, false, json_build_object('sqlstate', 'WF010',
                    'reason', 'the element is malformed: a member has the wrong type or form'),
                    NULL)::flow_append_element];
            END;
            v_elements := v_elements || v_one;
        END LOOP;
    END;
    IF cardinality(v_elements) > 1000 THEN
        PERFORM flow_raise_argument('p_batch', 'at most 1000 elements a call');
    END IF;
    RETURN v_elements;
END
$$;

-- The run id of a malformed element, if it can be told, so that the answer names the run.
CREATE FUNCTION flow_append_run_id(p_element json, p_shielded boolean) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN left(flow_text_unshield(p_shielded, p_element ->> 'run_id'), 255);
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_parse(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_run_id(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_parse(json) IS 'Reads a batch of appends.';
COMMENT ON FUNCTION flow_append_run_id(json, boolean)
    IS 'The run id of a malformed element, if any.';
