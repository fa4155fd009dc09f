-- What drivers cannot read although PostgreSQL stores it: an event with such a value in it would
-- make its run unreadable for good, so verbs refuse it.
--   flow_json_refusal(value)        why a JSON value cannot be read, or null: more than 200 levels
--                                   of lists and objects, or a number of more than 4300 digits
--   flow_json_find_refusal(value)   the same, without the quick answer for short values
--   flow_json_is_name(value, n)     whether a JSON value is a string that may be an id or a name
--   flow_text_is_name(text, n)      not blank, and at most n characters
--   flow_text_is_space(text)        whether a text is nothing but what Unicode calls white space
-- Arguments: as named. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed there. Give them plain
-- columns: an expression as argument keeps them from being inlined.
CREATE FUNCTION flow_json_find_refusal(p_value json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    c_string CONSTANT text := '"(?:[^"\\]|\\.)*"';
    v_text text := p_value::text;
    v_bare text;
BEGIN
    -- the questions begin with cheap ones: hardly any value gets to the last
    IF octet_length(v_text) > 4300
        AND strpos(translate(v_text, '123456789', '000000000'), repeat('0', 4301)) > 0
    THEN
        v_bare := regexp_replace(v_text, c_string, '""', 'g');
        IF strpos(translate(v_bare, '123456789', '000000000'), repeat('0', 4301)) > 0 THEN
            RETURN 'a number in it has more than 4300 digits';
        END IF;
    END IF;
    IF length(v_text) - length(translate(v_text, '[{', '')) > 200 THEN
        v_bare := coalesce(v_bare, regexp_replace(v_text, c_string, '""', 'g'));
        v_bare := translate(regexp_replace(v_bare, '[^][{}]+', '', 'g'), '{}', '[]');
        -- each pass takes the innermost level off
        FOR v_level IN 1 .. 200 LOOP
            EXIT WHEN v_bare = '';
            v_bare := replace(v_bare, '[]', '');
        END LOOP;
        IF v_bare <> '' THEN
            RETURN 'it is nested more than 200 levels deep';
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_json_refusal(p_value json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN octet_length(p_value::text) > 400 THEN flow_json_find_refusal(p_value) END;

CREATE FUNCTION flow_text_is_space(p_text text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_spaces text := E' \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f';
BEGIN
    IF getdatabaseencoding() = 'UTF8' THEN
        v_spaces := v_spaces || convert_from(decode(
            'c285c2a0e19a80e28080e28081e28082e28083e28084e28085e28086e28087e28088e28089e2808a'
            'e280a8e280a9e280afe2819fe38080', 'hex'), 'UTF8');
    END IF;
    RETURN btrim(p_text, v_spaces) = '';
END
$$;

CREATE FUNCTION flow_text_is_name(p_text text, p_characters integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN p_text IS NULL OR char_length(p_text) > p_characters THEN false
    -- what begins with a printable character of ASCII is not blank
    WHEN ascii(p_text) BETWEEN 33 AND 126 THEN true
    ELSE NOT flow_text_is_space(p_text)
END;

-- A character takes at most twelve bytes of JSON.
CREATE FUNCTION flow_json_is_name(p_value json, p_characters integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN p_value IS NULL OR json_typeof(p_value) <> 'string' THEN false
    WHEN octet_length(p_value::text) > 12 * p_characters + 2 THEN false
    WHEN flow_json_is_hard(p_value::text) AND strpos(flow_json_shield(p_value::text), E'\x7f3') > 0
        THEN false
    ELSE flow_text_is_name(p_value #>> '{}', p_characters)
END;

REVOKE EXECUTE ON FUNCTION flow_json_find_refusal(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_refusal(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_text_is_space(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_text_is_name(text, integer) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_is_name(json, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_find_refusal(json)
    IS 'Why a driver could not read a JSON value, or null.';
COMMENT ON FUNCTION flow_json_refusal(json)
    IS 'Why a driver could not read a JSON value, or null.';
COMMENT ON FUNCTION flow_text_is_space(text) IS 'Whether a text is nothing but white space.';
COMMENT ON FUNCTION flow_text_is_name(text, integer)
    IS 'Whether a text may be an id, a name or a kind.';
COMMENT ON FUNCTION flow_json_is_name(json, integer)
    IS 'Whether a JSON value may be an id, a name or a kind.';
