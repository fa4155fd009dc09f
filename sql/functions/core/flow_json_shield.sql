-- JSON that PostgreSQL stores but cannot take apart.
-- The json type keeps \u0000 and lone surrogates verbatim, but no function can look inside such a
-- document. Shielding rewrites the backslash of those escapes into a mark that cannot be mistaken,
-- so that members can be found, and unshielding gives every byte back.
-- The mark is DEL (0x7F), a character JSON allows: DEL 1 stands for DEL, DEL 2 for an escaped
-- backslash, DEL 3 for the backslash of a shielded escape.
--   flow_json_is_hard(text)        whether shielding may be needed; cheap, may say yes too often
--   flow_json_shield(text)         JSON text to JSON text
--   flow_json_unshield(text)       the inverse, on JSON text
--   flow_text_unshield(flag, text) the inverse, on a string value; flag says that it was shielded
-- Locks: none. SQLSTATEs: 22P05 when a string value holds what text cannot. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_json_is_hard(p_text text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN strpos(p_text, '\u') > 0
   AND (strpos(p_text, '\u0000') > 0 OR strpos(p_text, '\ud') > 0 OR strpos(p_text, '\uD') > 0);

CREATE FUNCTION flow_json_shield(p_text text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    v_text text := replace(replace(p_text, E'\x7f', E'\x7f1'), '\\', E'\x7f2');
BEGIN
    -- every backslash that is left begins an escape
    v_text := replace(v_text, '\u0000', E'\x7f3u0000');
    v_text := replace(replace(v_text, '\u007f', E'\x7f3u007f'), '\u007F', E'\x7f3u007F');
    v_text := regexp_replace(v_text,
        '(?<!\\u[dD][89abAB][[:xdigit:]]{2})\\(u[dD][c-fC-F][[:xdigit:]]{2})',
        E'\x7f3\\1', 'g');
    RETURN regexp_replace(v_text,
        '\\(u[dD][89abAB][[:xdigit:]]{2})(?!\\u[dD][c-fC-F][[:xdigit:]]{2})',
        E'\x7f3\\1', 'g');
END
$$;

CREATE FUNCTION flow_json_unshield(p_text text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN replace(replace(replace(p_text, E'\x7f3', '\'), E'\x7f2', '\\'), E'\x7f1', E'\x7f');

-- It takes the value so that the planner cannot evaluate, and raise, ahead of time.
CREATE FUNCTION flow_text_refuse_escape(p_value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'untranslatable_character',
        MESSAGE = 'a string holds \u0000 or a lone surrogate where plain text is needed';
END
$$;

CREATE FUNCTION flow_text_unshield(p_shielded boolean, p_value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN NOT p_shielded OR strpos(p_value, E'\x7f') = 0 THEN p_value
    WHEN strpos(p_value, E'\x7f3') > 0 THEN flow_text_refuse_escape(p_value)
    ELSE replace(replace(p_value, E'\x7f2', '\'), E'\x7f1', E'\x7f')
END;

REVOKE EXECUTE ON FUNCTION flow_json_is_hard(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_shield(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_unshield(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_text_refuse_escape(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_text_unshield(boolean, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_is_hard(text)
    IS 'Whether JSON text may hold escapes that cannot be taken apart.';
COMMENT ON FUNCTION flow_json_shield(text)
    IS 'Marks \u0000 and lone surrogates so that JSON can be taken apart.';
COMMENT ON FUNCTION flow_json_unshield(text) IS 'The inverse of flow_json_shield, on JSON text.';
COMMENT ON FUNCTION flow_text_refuse_escape(text) IS 'Raises 22P05.';
COMMENT ON FUNCTION flow_text_unshield(boolean, text)
    IS 'The inverse of flow_json_shield, on a string value.';
