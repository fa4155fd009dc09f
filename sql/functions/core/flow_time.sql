-- Times as the events write them: RFC 3339, UTC, Z, microseconds.
--   flow_time_text(time)            timestamptz to text
--   flow_time_after(time, us)       time plus whole microseconds, exact (an interval multiplied by
--                                   a large float would round)
--   flow_deadline(text)             RFC 3339 text to timestamptz, rounded UP to microseconds, so
--                                   that a wait is never early
-- Arguments: as named. Locks: none. SQLSTATEs: 22007, 22008 when a text is not RFC 3339.
-- Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed there.
CREATE FUNCTION flow_time_text(p_time timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

CREATE FUNCTION flow_time_after(p_time timestamptz, p_microseconds bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN p_time + (p_microseconds / 1000000) * interval '1 second'
              + (p_microseconds % 1000000) * interval '1 microsecond';

CREATE FUNCTION flow_deadline(p_text text) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
DECLARE
    v_parts text[] := regexp_match(p_text COLLATE "C",
        '^(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d+))?([Zz]|[+-]\d{2}:\d{2})$');
    v_time timestamptz;
BEGIN
    IF p_text IS NULL THEN
        RETURN NULL;
    END IF;
    IF v_parts IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_datetime_format',
            MESSAGE = 'a time is not RFC 3339 with an offset';
    END IF;
    v_time := (v_parts[1] || ' ' || v_parts[2] || '.'
        || rpad(left(coalesce(v_parts[3], ''), 6), 6, '0') || v_parts[4])::timestamptz;
    IF substr(coalesce(v_parts[3], ''), 7) ~ '[1-9]' THEN
        v_time := v_time + interval '1 microsecond';
    END IF;
    IF v_time < '0001-01-01 00:00:00+00' OR v_time >= '10000-01-01 00:00:00+00' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'datetime_field_overflow',
            MESSAGE = 'a time is not between the years 1 and 9999 in UTC';
    END IF;
    RETURN v_time;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_time_text(timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_time_after(timestamptz, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_deadline(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_time_text(timestamptz) IS 'A time as RFC 3339 text, UTC, microseconds.';
COMMENT ON FUNCTION flow_time_after(timestamptz, bigint)
    IS 'A time plus whole microseconds, exact.';
COMMENT ON FUNCTION flow_deadline(text) IS 'RFC 3339 text as a time, rounded up to microseconds.';
