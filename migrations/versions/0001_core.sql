-- Frozen from sql/ by migrations/freeze.py: change the files there, not this one.

-- sql/functions/core/flow_now.sql
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

-- sql/functions/core/flow_lock_keys.sql
-- Every advisory lock key of the schema is named here, and nowhere else.
--   flow_retention_key()   one key, shared by all writers, exclusive for retention
--   flow_run_key(run)      one key a run: whoever appends to a run or touches its task holds it
--   flow_token_key(token)  one key a hook token: whoever creates a hook with that token holds it
--   flow_mark_key(name)    one key a row of flow_marks or flow_idle_queues, for whoever adds it
-- All are 64-bit keys of transaction-level locks. Equal keys of two runs only make them wait for
-- each other. The seeds keep the key spaces apart.
-- Arguments: a run id, a token, a name. Locks: none (they only name keys). SQLSTATEs: none.
-- Callers: internal. Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_retention_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7308895157390442086::bigint;

CREATE FUNCTION flow_run_key(p_run_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_run_id COLLATE "C", 8243111874320954482);

CREATE FUNCTION flow_token_key(p_token text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_token COLLATE "C", 2738188573525177710);

CREATE FUNCTION flow_mark_key(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_name COLLATE "C", 5471938207719163);

REVOKE EXECUTE ON FUNCTION flow_retention_key() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_run_key(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_token_key(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_mark_key(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_retention_key() IS 'Advisory lock key of the retention guard.';
COMMENT ON FUNCTION flow_run_key(text) IS 'Advisory lock key of a run.';
COMMENT ON FUNCTION flow_token_key(text) IS 'Advisory lock key of a hook token.';
COMMENT ON FUNCTION flow_mark_key(text) IS 'Advisory lock key of a mark or idle hint.';

-- sql/functions/core/flow_lock_runs.sql
-- flow_lock_runs: takes the locks that every writer holds before it looks at a run.
-- Arguments: p_run_ids, the runs that will be read, appended to or linked; unknown ids are fine.
-- Locks, in order: the retention guard (shared), then one key a run, sorted by key.
-- It must be a statement of its own: the statement after it sees what the lock protected.
-- SQLSTATEs: WF009 where the session keeps triggers from firing, as who loads in bulk may have it:
--   an event would be stored that no projection knows of. 40001 under REPEATABLE READ or
--   SERIALIZABLE when a run has moved since the snapshot.
-- Callers: internal, and foreign writers before a direct INSERT.
CREATE FUNCTION flow_lock_runs(p_run_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica' THEN
        PERFORM flow_raise_transition(NULL, 'session_replication_role is replica here, so that '
            'nothing would keep the projections; set it to origin before verbs are called');
    END IF;
    PERFORM pg_advisory_xact_lock_shared(flow_retention_key());
    PERFORM pg_advisory_xact_lock(k.lock_key)
       FROM (SELECT DISTINCT flow_run_key(i.run_id) AS lock_key
               FROM unnest(p_run_ids) AS i (run_id)
              WHERE i.run_id IS NOT NULL
              ORDER BY 1
             OFFSET 0) AS k;
    IF flow_is_repeatable() THEN
        PERFORM FROM flow_runs AS r
          WHERE r.run_id = ANY (p_run_ids) ORDER BY r.run_id FOR NO KEY UPDATE;
    END IF;
END
$$;

-- Whether the transaction keeps one snapshot. It may be older than the locks then, and what it
-- shows be out of date; touching the rows of the runs raises 40001 in that case, as PostgreSQL
--   would.
CREATE FUNCTION flow_is_repeatable() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('transaction_isolation') IN ('repeatable read', 'serializable');

REVOKE EXECUTE ON FUNCTION flow_is_repeatable() FROM PUBLIC;
COMMENT ON FUNCTION flow_is_repeatable() IS 'Whether the transaction keeps one snapshot.';

REVOKE EXECUTE ON FUNCTION flow_lock_runs(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_lock_runs(text[])
    IS 'Takes the retention guard and the locks of the given runs, in order.';

-- sql/functions/core/flow_lock_tokens.sql
-- flow_lock_tokens: takes the locks of hook tokens, after the locks of the runs.
-- Arguments: p_tokens, the tokens about to be claimed.
-- Locks, in order: one key a token, sorted by key. SQLSTATEs: none of its own. Callers: internal.
CREATE FUNCTION flow_lock_tokens(p_tokens text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(k.lock_key)
       FROM (SELECT DISTINCT flow_token_key(i.token) AS lock_key
               FROM unnest(p_tokens) AS i (token)
              WHERE i.token IS NOT NULL
              ORDER BY 1
             OFFSET 0) AS k;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_lock_tokens(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_lock_tokens(text[])
    IS 'Takes the locks of the given hook tokens, in order.';

-- sql/functions/core/flow_try_lock_runs.sql
-- flow_try_lock_runs: takes the locks of those runs that nobody else is working on.
-- Arguments: p_run_ids. Returns the runs that are locked now; it never waits for a run.
-- Locks, in order: retention guard (shared), run locks if free. SQLSTATEs: 40001 as flow_lock_runs.
-- Callers: internal. A statement of its own, like flow_lock_runs.
CREATE FUNCTION flow_try_lock_runs(p_run_ids text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_locked text[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(flow_retention_key());
    v_locked := ARRAY(SELECT i.run_id FROM unnest(p_run_ids) AS i (run_id)
                       WHERE pg_try_advisory_xact_lock(flow_run_key(i.run_id)));
    IF flow_is_repeatable() THEN
        PERFORM FROM flow_runs AS r
          WHERE r.run_id = ANY (v_locked) ORDER BY r.run_id FOR NO KEY UPDATE;
    END IF;
    RETURN v_locked;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_try_lock_runs(text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_try_lock_runs(text[]) IS 'Takes the locks of runs that are free.';

-- sql/functions/core/flow_raise.sql
-- flow_raise: raises one error of class WF.
-- Arguments: p_sqlstate (WF001 to WF013, see sql/README.md); p_message, a sentence naming the run;
--   p_detail, the fields of the error, sent as JSON in DETAIL; p_hint, what to do.
--   Never a hook token or a payload in any of them.
-- Locks: none. SQLSTATEs: the one given. Callers: internal.
CREATE FUNCTION flow_raise(p_sqlstate text, p_message text, p_detail jsonb, p_hint text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = p_sqlstate,
        MESSAGE = p_message,
        DETAIL = p_detail::text,
        HINT = p_hint;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise(text, text, jsonb, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise(text, text, jsonb, text) IS 'Raises one error of class WF.';

-- sql/functions/core/flow_raise_run.sql
-- The errors that many verbs raise, so that each has one wording.
--   flow_raise_not_found(run)          WF001
--   flow_raise_terminal(run, status)   WF004
--   flow_raise_transition(run, why)    WF009, run may be null
--   flow_raise_argument(name, why)     WF010
--   flow_raise_run_id(run)             WF013
-- Arguments: the run, and words that never hold a token or a payload.
-- Locks: none. SQLSTATEs: as listed. Callers: internal.
CREATE FUNCTION flow_raise_not_found(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF001', format('run %s does not exist', coalesce(p_run_id, '(null)')),
        jsonb_build_object('run_id', p_run_id),
        'Check the run id, and that the run was started in this schema.');
END
$$;

CREATE FUNCTION flow_raise_terminal(p_run_id text, p_status text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF004', format('run %s has already ended: %s', p_run_id, p_status),
        jsonb_build_object('run_id', p_run_id, 'status', p_status),
        'A run that has ended accepts no further event; start a new run.');
END
$$;

CREATE FUNCTION flow_raise_transition(p_run_id text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF009',
        CASE WHEN p_run_id IS NULL THEN p_reason ELSE format('run %s: %s', p_run_id, p_reason) END,
        jsonb_strip_nulls(jsonb_build_object('run_id', p_run_id, 'reason', p_reason)),
        'Read the run''s history with flow_history to see what it allows next.');
END
$$;

CREATE FUNCTION flow_raise_argument(p_argument text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF010', format('argument %s is not valid: %s', p_argument, p_reason),
        jsonb_build_object('argument', p_argument, 'reason', p_reason),
        'Correct the argument and call again; nothing was changed.');
END
$$;

CREATE FUNCTION flow_raise_run_id(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF013',
        format('run id %s is not valid', coalesce(quote_literal(left(p_run_id, 64)), '(null)')),
        jsonb_strip_nulls(jsonb_build_object('run_id', left(p_run_id, 64))),
        'A run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + - and starts with a letter or digit.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise_not_found(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_terminal(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_transition(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_argument(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_run_id(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise_not_found(text) IS 'Raises WF001.';
COMMENT ON FUNCTION flow_raise_terminal(text, text) IS 'Raises WF004.';
COMMENT ON FUNCTION flow_raise_transition(text, text) IS 'Raises WF009.';
COMMENT ON FUNCTION flow_raise_argument(text, text) IS 'Raises WF010.';
COMMENT ON FUNCTION flow_raise_run_id(text) IS 'Raises WF013.';

-- sql/functions/core/flow_check_limit.sql
-- flow_check_limit: refuses a page size or batch size outside 1 to 1000.
-- Arguments: p_limit. Locks: none. SQLSTATEs: WF010. Callers: internal.
CREATE FUNCTION flow_check_limit(p_limit integer) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 1000 THEN
        PERFORM flow_raise_argument('p_limit', 'it must be from 1 to 1000');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_check_limit(integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_check_limit(integer) IS 'Refuses a limit outside 1 to 1000.';

-- sql/functions/core/flow_run_id_is_valid.sql
-- flow_run_id_is_valid: 1 to 255 characters of A-Z a-z 0-9 . _ : @ + -, starting alphanumeric.
-- Arguments: p_run_id. Locks: none. SQLSTATEs: none. Callers: internal.
-- The length is not part of the expression: as a bound of 254 repetitions it takes 30 us to match.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_run_id_is_valid(p_run_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(octet_length(p_run_id) <= 255
    AND p_run_id COLLATE "C" ~ '^[A-Za-z0-9][A-Za-z0-9._:@+-]*$', false);

REVOKE EXECUTE ON FUNCTION flow_run_id_is_valid(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_run_id_is_valid(text) IS 'Whether a text may be a run id.';

-- sql/functions/core/flow_status.sql
-- The words of a run's life, in one place.
--   flow_terminal_status(event type)   status that the event ends a run with, else null
--   flow_is_terminal(status)           whether a status is final
--   flow_clears(event type)            whether the event drops every open hook and wakeup of its
--   run
-- Arguments: an event type or a status. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_terminal_status(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'run_completed' THEN 'completed'
    WHEN 'run_failed' THEN 'failed'
    WHEN 'run_cancelled' THEN 'cancelled'
    WHEN 'run_timed_out' THEN 'failed'
    WHEN 'run_retry_exhausted' THEN 'failed'
    WHEN 'run_host_shutdown' THEN 'failed'
    WHEN 'run_continued_as_new' THEN 'continued_as_new'
END;

CREATE FUNCTION flow_is_terminal(p_status text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_status IN ('completed', 'failed', 'cancelled', 'continued_as_new');

CREATE FUNCTION flow_clears(p_event_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_event_type IN ('run_cancellation_requested', 'run_completed', 'run_failed',
    'run_cancelled', 'run_timed_out', 'run_retry_exhausted', 'run_host_shutdown',
    'run_continued_as_new');

REVOKE EXECUTE ON FUNCTION flow_terminal_status(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_is_terminal(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_clears(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminal_status(text) IS 'Status that a terminal event gives its run.';
COMMENT ON FUNCTION flow_is_terminal(text) IS 'Whether a run status is final.';
COMMENT ON FUNCTION flow_clears(text)
    IS 'Whether an event drops all open hooks and wakeups of its run.';

-- sql/functions/core/flow_json_shield.sql
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

-- sql/functions/core/flow_json_get.sql
-- Members of a json object, verbatim, also where the document holds \u0000 or a lone surrogate.
--   flow_json_get(object, key)        the member as json, its text unchanged; null when absent
--   flow_json_get_text(object, key)   the member as text; null when absent or JSON null
-- Arguments: p_object (anything but an object has no members), p_key.
-- Locks: none. SQLSTATEs: 22P05 from flow_json_get_text when the string cannot be text.
-- Callers: internal. Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_json_get(p_object json, p_key text) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN flow_json_is_hard(p_object::text)
    THEN flow_json_unshield((flow_json_shield(p_object::text)::json -> p_key)::text)::json
    ELSE p_object -> p_key
END;

CREATE FUNCTION flow_json_get_text(p_object json, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN flow_json_is_hard(p_object::text)
    THEN flow_text_unshield(true, flow_json_shield(p_object::text)::json ->> p_key)
    ELSE p_object ->> p_key
END;

REVOKE EXECUTE ON FUNCTION flow_json_get(json, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_json_get_text(json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_get(json, text) IS 'A member of a json object, its text unchanged.';
COMMENT ON FUNCTION flow_json_get_text(json, text) IS 'A member of a json object as text.';

-- sql/functions/core/flow_json_equal.sql
-- flow_json_equal: whether two JSON values say the same.
-- Arguments: a, b. Equal text is equal; otherwise equal as jsonb (member order, spacing and the
--   spelling of numbers do not matter); what jsonb cannot hold (\u0000, lone surrogates, numbers
--   beyond its range) is equal only as text. Two nulls are equal.
-- Locks: none. SQLSTATEs: none, it never raises. Callers: internal.
CREATE FUNCTION flow_json_equal(a json, b json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF a IS NULL OR b IS NULL THEN
        RETURN a IS NULL AND b IS NULL;
    END IF;
    IF a::text = b::text THEN
        RETURN true;
    END IF;
    RETURN a::text::jsonb = b::text::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_json_equal(json, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_equal(json, json)
    IS 'Whether two JSON values say the same; never raises.';

-- sql/functions/core/flow_json_refusal.sql
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

-- sql/functions/core/flow_json_with.sql
-- flow_json_with: an object with one more text member at its end, the rest of its text unchanged.
-- Arguments: p_object (a JSON object), p_key and p_value (plain words that need no escaping).
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_json_with(p_object json, p_key text, p_value text) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(p_object::text, '[ \t\n\r]*\}[ \t\n\r]*$',
    CASE WHEN p_object::text ~ '^[ \t\n\r]*\{[ \t\n\r]*\}[ \t\n\r]*$' THEN '' ELSE ',' END
    || '"' || p_key || '":"' || p_value || '"}')::json;

REVOKE EXECUTE ON FUNCTION flow_json_with(json, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_json_with(json, text, text)
    IS 'An object with one more text member at its end.';

-- sql/functions/core/flow_time.sql
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

-- sql/functions/core/flow_uuid7.sql
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

-- sql/functions/core/flow_event_id.sql
-- flow_event_id: the id of an event whose writer gave none, derived from its place.
-- Arguments: p_run_id, p_sequence. The same place always gives the same id: a random one would open
--   the random device for every event. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_id(p_run_id text, p_sequence bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN md5(p_run_id || '/' || p_sequence::text)::uuid;

REVOKE EXECUTE ON FUNCTION flow_event_id(text, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_id(text, bigint) IS 'The id of an event whose writer gave none.';

-- sql/functions/core/flow_unbundle.sql
-- Bundles: step events that stand together in one append, stored as one row of flow_event_log.
--   flow_unbundle(bundle, last, count)   the events of a bundle, numbered up to last
-- An item is [letter, payload]: c for step_created, s for step_started, d for step_completed; the
-- payload begins with the subject, as step_id, and keeps its text. C is a step_created, and S a
-- step_started, whose payload ends with the usual policy or with attempt 1: that is left out.
-- What flow_json_is_hard says yes to is never bundled: it could not be taken apart.
-- An item that is none of these, which only an INSERT past the verbs can store, comes out as an
-- event step_unreadable: no driver reads its run, and nobody else who reads the table is harmed.
-- Arguments: as named. Locks: none. SQLSTATEs: none. Callers: internal, and the view flow_events.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_unbundle(p_bundle json, p_last bigint, p_count integer)
RETURNS TABLE (sequence bigint, event_type text, subject_id text, payload json)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT p_last - p_count + i.n,
           CASE
               WHEN i.letter IN ('d', 'c', 's') AND json_typeof(i.payload) = 'object'
                    OR i.letter IN ('C', 'S') AND i.payload::text LIKE '{"%'
               THEN CASE lower(i.letter)
                   WHEN 'd' THEN 'step_completed'
                   WHEN 'c' THEN 'step_created'
                   WHEN 's' THEN 'step_started'
               END
               ELSE 'step_unreadable'
           END,
           i.payload ->> 'step_id',
           CASE
               WHEN i.letter = 'C' AND i.payload::text LIKE '{"%'
                   THEN (left(i.payload::text, -1)
                         || ',"retry":{"max_attempts":3,"delay_ms":0}}')::json
               WHEN i.letter = 'S' AND i.payload::text LIKE '{"%'
                   THEN (left(i.payload::text, -1) || ',"attempt":1}')::json
               ELSE coalesce(i.payload, '{}')
           END
      FROM (SELECT a.n, a.item ->> 0 AS letter, a.item -> 1 AS payload
              FROM json_array_elements(
                       CASE WHEN json_typeof(p_bundle) = 'array'
                                 AND NOT flow_json_is_hard(p_bundle::text)
                            THEN p_bundle ELSE '[null]'::json
                       END) WITH ORDINALITY AS a (item, n)
            OFFSET 0) AS i;
END;

REVOKE EXECUTE ON FUNCTION flow_unbundle(json, bigint, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_unbundle(json, bigint, integer) IS 'The events of a bundle.';

-- sql/functions/core/flow_event_refusal.sql
-- flow_event_refusal: what is wrong with the shape of one event, or null when it may be stored.
-- flow_event_name: the type of an event as an error may say it; other texts may be anything.
-- Arguments: p_event_type, p_subject_id (1 to 2048 bytes, needed unless the type begins with run_),
--   p_has_due (whether the event has a deadline), p_payload (a JSON object of at most 1048576
--   bytes).
-- 2048 bytes are what an index row can hold together with the run id.
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_name(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_event_type ~ '^[a-z]+(_[a-z]+)+$' THEN p_event_type ELSE 'misnamed' END;

CREATE FUNCTION flow_event_refusal(
    p_event_type text, p_subject_id text, p_has_due boolean, p_payload json
) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN coalesce(p_event_type, '') = '' THEN 'an event has no type'
    WHEN octet_length(p_event_type) > 200 THEN 'an event type is longer than 200 bytes'
    WHEN p_subject_id IS NULL AND NOT starts_with(p_event_type, 'run_')
        THEN 'a ' || flow_event_name(p_event_type) || ' event has no subject'
    WHEN octet_length(p_subject_id) > 2048
        THEN 'the subject of a ' || flow_event_name(p_event_type)
            || ' event is longer than 2048 bytes'
    WHEN btrim(p_subject_id) = ''
        THEN 'the subject of a ' || flow_event_name(p_event_type) || ' event is blank'
    WHEN p_event_type = 'wait_created' AND NOT p_has_due THEN 'a wait_created event has no deadline'
    WHEN p_payload IS NULL OR json_typeof(p_payload) <> 'object'
        THEN 'the payload of a ' || flow_event_name(p_event_type) || ' event is not a JSON object'
    WHEN octet_length(p_payload::text) > 1048576
        THEN 'the payload of a ' || flow_event_name(p_event_type)
            || ' event is larger than 1048576 bytes'
END;

REVOKE EXECUTE ON FUNCTION flow_event_name(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_event_refusal(text, text, boolean, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_refusal(text, text, boolean, json)
    IS 'What is wrong with the shape of one event, or null.';
COMMENT ON FUNCTION flow_event_name(text) IS 'The type of an event as an error may say it.';

-- sql/functions/core/flow_refuse_event.sql
-- Trigger functions that refuse what must not happen to flow_event_log.
--   flow_refuse_event()    a row whose shape is wrong; the table's own constraints would refuse it
--                          too, but their error shows the row, and with it tokens and payloads
--   flow_refuse_change()   UPDATE, DELETE or TRUNCATE: the table is append-only
-- Locks: none. SQLSTATEs: WF009, WF012. Callers: the triggers.
CREATE FUNCTION flow_refuse_event() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF octet_length(NEW.payload::text) > 1048576 THEN
        PERFORM flow_raise_too_large(NEW.run_id, coalesce(NEW.event_type, 'bundled'),
            octet_length(NEW.payload::text));
    ELSIF NEW.event_type IS NULL AND NEW.event_count > 1 THEN
        PERFORM flow_raise_transition(NEW.run_id, 'a bundle of step events, which is what a row '
            'without a type is, needs an array of as many items as it has events, no escaped '
            'NUL or surrogate in it, a sequence that leaves room for them, and no subject, '
            'deadline, id or schema version');
    END IF;
    PERFORM flow_raise_transition(NEW.run_id, coalesce(
        flow_event_refusal(NEW.event_type, NEW.subject_id, NEW.due_at IS NOT NULL, NEW.payload),
        'an event needs a sequence from 1, a transaction id, and times of the years 1 '
        'to 9999'));
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_refuse_change() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise_transition(NULL,
        format('%s on %I is refused: history is append-only', lower(TG_OP), TG_TABLE_NAME));
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_raise_too_large(p_run_id text, p_event_type text, p_bytes integer)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF012',
        format('run %s: the payload of a %s event has %s bytes, at most 1048576 are stored',
            p_run_id, flow_event_name(p_event_type), p_bytes),
        jsonb_build_object('run_id', p_run_id, 'event_type', flow_event_name(p_event_type),
            'bytes', p_bytes, 'max_bytes', 1048576),
        'Store large values elsewhere and pass a reference.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_refuse_event() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_refuse_change() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_too_large(text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_refuse_event() IS 'Trigger function: refuses a row of the wrong shape.';
COMMENT ON FUNCTION flow_refuse_change() IS 'Trigger function: refuses changes of history.';
COMMENT ON FUNCTION flow_raise_too_large(text, text, integer) IS 'Raises WF012.';

-- sql/tables/flow_migrations.sql
-- flow_migrations: the applied revisions and the checksum of the SQL each one ran.
-- Serving processes compare it with what they were built for and never run DDL themselves.
CREATE TABLE flow_migrations (
    version text COLLATE "C" NOT NULL,
    sha256 text COLLATE "C" NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT flow_now(),
    CONSTRAINT flow_migrations_pkey PRIMARY KEY (version)
);

COMMENT ON TABLE flow_migrations IS 'Applied revisions and the checksum of their SQL.';
COMMENT ON COLUMN flow_migrations.version IS 'Revision.';
COMMENT ON COLUMN flow_migrations.sha256 IS 'SHA-256 of the SQL that was run, in hex.';
COMMENT ON COLUMN flow_migrations.applied_at IS 'When it was applied.';

-- sql/tables/flow_event_log.sql
-- flow_event_log: the event streams, the only authority; every other table can be rebuilt from it.
-- Append-only by trigger and by grants. Read it through the view flow_events, one row an event.
-- A row holds one event, or a bundle: the step events that stand together in one append, most of
-- every history. A row costs 75 bytes and two thirds of its time besides what it says, so a bundle
-- makes a history half as long. flow_unbundle takes it apart; event_type is null for it.
-- The wide columns come first: no byte is lost between them.
CREATE TABLE flow_event_log (
    sequence bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT flow_now(),
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    due_at timestamptz,
    event_id uuid,
    event_count integer NOT NULL DEFAULT 1,
    schema_version smallint,
    run_id text COLLATE "C" NOT NULL,
    event_type text COLLATE "C",
    subject_id text COLLATE "C",
    payload json NOT NULL,
    CONSTRAINT flow_event_log_pkey PRIMARY KEY (run_id, sequence)
) WITH (
    -- rows are never updated: pages may be full
    fillfactor = 100,
    -- there are no dead rows to wait for; vacuum only freezes and sets the visibility map, and
    -- doing so every 50,000 inserted rows keeps each pass short
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.02
);

-- What client verbs look up by subject. Steps, the bulk of a history, stay out of it.
CREATE INDEX flow_event_log_subject_idx ON flow_event_log (run_id, subject_id)
    WHERE event_type IN (
        'wait_created', 'wait_completed', 'hook_created', 'hook_received', 'hook_disposed',
        'hook_conflicted', 'run_progress_recorded', 'child_operation_linked',
        'run_cancellation_requested', 'signal_received', 'update_applied');

COMMENT ON TABLE flow_event_log
    IS 'The event streams of all runs, append-only, a row an event or a bundle of step events; '
       'read it through flow_events.';
COMMENT ON COLUMN flow_event_log.run_id IS 'The run whose stream this is.';
COMMENT ON COLUMN flow_event_log.sequence
    IS 'Place in the stream, from 1, without gaps; that of the last event of a bundle.';
COMMENT ON COLUMN flow_event_log.event_count
    IS 'Events in the row: those of a bundle are numbered up to its sequence.';
COMMENT ON COLUMN flow_event_log.event_id
    IS 'Identity of the event if its writer gave one; else it is derived from run and sequence.';
COMMENT ON COLUMN flow_event_log.event_type
    IS 'What happened, in snake case, for example run_completed; null for a bundle.';
COMMENT ON COLUMN flow_event_log.subject_id
    IS 'The step, wait, hook, link or progress id the event is about; null for events of the run '
       'itself, and for a bundle.';
COMMENT ON COLUMN flow_event_log.due_at
    IS 'Deadline the event sets (wait, retry, hook expiry), rounded up to microseconds.';
COMMENT ON COLUMN flow_event_log.payload
    IS 'The event object without its type member, text kept verbatim; of a bundle, an array for '
       'flow_unbundle. Holds hook tokens and user data.';
COMMENT ON COLUMN flow_event_log.recorded_at
    IS 'Database time of the append; equal for all events of one append.';
COMMENT ON COLUMN flow_event_log.transaction_id
    IS 'Transaction that wrote the row; lets a reader follow commits without gaps.';
COMMENT ON COLUMN flow_event_log.schema_version
    IS 'Envelope schema version as on the wire; null means that it was absent and is read as 1.';

-- sql/views/flow_events.sql
-- flow_events: the event streams as everybody reads them, one row an event; and the way in
-- for writers of another make.
CREATE VIEW flow_events AS
SELECT l.run_id, l.sequence,
       coalesce(l.event_id, flow_event_id(l.run_id, l.sequence)) AS event_id,
       l.event_type, l.subject_id, l.due_at, l.payload, l.recorded_at, l.transaction_id,
       l.schema_version
  FROM flow_event_log AS l
 WHERE l.event_type IS NOT NULL
UNION ALL
SELECT l.run_id, e.sequence, flow_event_id(l.run_id, e.sequence),
       e.event_type COLLATE "C", e.subject_id COLLATE "C", NULL::timestamptz, e.payload,
       l.recorded_at, l.transaction_id, NULL::smallint
  FROM flow_event_log AS l
 CROSS JOIN LATERAL flow_unbundle(l.payload, l.sequence, l.event_count) AS e
 WHERE l.event_type IS NULL;

ALTER VIEW flow_events ALTER COLUMN recorded_at SET DEFAULT flow_now();
ALTER VIEW flow_events ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

-- Stores the event of a row that is inserted into the view.
-- Locks and SQLSTATEs: those of the triggers of flow_event_log. Callers: the trigger.
CREATE FUNCTION flow_insert_event() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NEW.event_type IS NULL THEN
        PERFORM flow_raise_transition(NEW.run_id, 'an event has no type');
    END IF;
    INSERT INTO flow_event_log (run_id, sequence, event_id, event_type, subject_id, due_at, payload,
        recorded_at, transaction_id, schema_version)
    VALUES (NEW.run_id, NEW.sequence, NEW.event_id, NEW.event_type, NEW.subject_id, NEW.due_at,
        NEW.payload, NEW.recorded_at, NEW.transaction_id, NEW.schema_version);
    RETURN NEW;
END
$$;

CREATE TRIGGER flow_events_insert
    INSTEAD OF INSERT ON flow_events
    FOR EACH ROW
    EXECUTE FUNCTION flow_insert_event();

CREATE TRIGGER flow_events_append_only
    BEFORE UPDATE OR DELETE ON flow_events
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

-- Without it an UPDATE or DELETE would be refused as something that views cannot do.
CREATE TRIGGER flow_events_no_change
    INSTEAD OF UPDATE OR DELETE ON flow_events
    FOR EACH ROW
    EXECUTE FUNCTION flow_refuse_change();

REVOKE EXECUTE ON FUNCTION flow_insert_event() FROM PUBLIC;
COMMENT ON FUNCTION flow_insert_event()
    IS 'Trigger function: stores an event that is inserted into flow_events.';
COMMENT ON VIEW flow_events IS 'The event streams of all runs, one row an event.';
COMMENT ON COLUMN flow_events.run_id IS 'The run whose stream this is.';
COMMENT ON COLUMN flow_events.sequence IS 'Place in the stream, from 1, without gaps.';
COMMENT ON COLUMN flow_events.event_id
    IS 'Identity of the event; derived from run and sequence when the writer gave none.';
COMMENT ON COLUMN flow_events.event_type
    IS 'What happened, in snake case, for example step_completed.';
COMMENT ON COLUMN flow_events.subject_id
    IS 'The step, wait, hook, link or progress id the event is about; null for events of the run '
       'itself.';
COMMENT ON COLUMN flow_events.due_at
    IS 'Deadline the event sets (wait, retry, hook expiry), rounded up to microseconds.';
COMMENT ON COLUMN flow_events.payload
    IS 'The event object without its type member, text kept verbatim. Holds hook tokens and user '
       'data.';
COMMENT ON COLUMN flow_events.recorded_at
    IS 'Database time of the append; equal for all events of one append.';
COMMENT ON COLUMN flow_events.transaction_id
    IS 'Transaction that wrote the row; lets a reader follow commits without gaps.';
COMMENT ON COLUMN flow_events.schema_version
    IS 'Envelope schema version as on the wire; null means that it was absent and is read as 1.';

-- sql/tables/flow_runs.sql
-- flow_runs: one row a run, the head of its stream and its line on the list page.
-- Maintained by the projection of flow_events in the transaction of the append.
CREATE TABLE flow_runs (
    run_id text COLLATE "C" NOT NULL,
    workflow_name text COLLATE "C" NOT NULL,
    workflow_version text COLLATE "C" NOT NULL,
    runtime_build text COLLATE "C",
    queue text COLLATE "C" NOT NULL DEFAULT 'default',
    status text COLLATE "C" NOT NULL,
    head_sequence bigint NOT NULL,
    lease_epoch bigint NOT NULL DEFAULT 0,
    blocked_reason text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    ended_at timestamptz,
    dead_letter_id bigint,
    priority smallint NOT NULL DEFAULT 0,
    concurrency_key text COLLATE "C",
    attributes jsonb,
    listed_as text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
        CASE WHEN status IN ('pending', 'running', 'suspended') THEN 'open' ELSE status END) STORED,
    CONSTRAINT flow_runs_pkey PRIMARY KEY (run_id),
    CONSTRAINT flow_runs_status_check CHECK (status IN (
        'pending', 'running', 'suspended', 'cancelling',
        'completed', 'failed', 'cancelled', 'continued_as_new')),
    CONSTRAINT flow_runs_head_sequence_check CHECK (head_sequence >= 0)
) WITH (
    -- every append updates the row; half-empty pages keep those updates heap-only
    fillfactor = 50,
    -- a table of many ended runs has few live updates: do not wait for a share of the whole
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.02
);

-- The list page, newest first, whole or by one filter. Nothing an ordinary append changes is
-- indexed, so a step stays a heap-only update; nor is what changes when a run starts, is suspended
-- or goes on, so status itself must be in no index, not even in the condition of one.
-- POSIX is C by another name: the same order, but an index that a filtered page cannot be tempted
-- to walk when the statistics are out of date.
CREATE INDEX flow_runs_created_idx ON flow_runs (created_at DESC, run_id COLLATE "POSIX");
CREATE INDEX flow_runs_listed_idx ON flow_runs (listed_as, created_at DESC, run_id);
CREATE INDEX flow_runs_workflow_idx ON flow_runs (workflow_name, created_at DESC, run_id);
CREATE INDEX flow_runs_blocked_idx ON flow_runs (created_at DESC, run_id)
    WHERE blocked_reason IS NOT NULL;
-- Which builds still have open runs.
CREATE INDEX flow_runs_build_idx ON flow_runs (runtime_build, created_at)
    WHERE runtime_build IS NOT NULL AND ended_at IS NULL;

COMMENT ON TABLE flow_runs
    IS 'One row a run: head of the stream, fence, and what the list page shows.';
COMMENT ON COLUMN flow_runs.run_id IS 'Id of the run.';
COMMENT ON COLUMN flow_runs.workflow_name IS 'Name of the workflow, from the spec.';
COMMENT ON COLUMN flow_runs.workflow_version IS 'Version of the workflow, from the spec.';
COMMENT ON COLUMN flow_runs.runtime_build
    IS 'Build the run is pinned to, from the spec; null when any build will do.';
COMMENT ON COLUMN flow_runs.queue IS 'Queue its drive task goes to.';
COMMENT ON COLUMN flow_runs.status
    IS 'Status after the last event; suspended is running with something awaited from elsewhere.';
COMMENT ON COLUMN flow_runs.head_sequence IS 'Sequence of the last event.';
COMMENT ON COLUMN flow_runs.lease_epoch
    IS 'Fence: grows with every lease of the run; an append with an older epoch is refused.';
COMMENT ON COLUMN flow_runs.blocked_reason
    IS 'Why no worker can drive the run at present; cleared by the next append or release.';
COMMENT ON COLUMN flow_runs.created_at IS 'Time of the first event.';
COMMENT ON COLUMN flow_runs.updated_at IS 'Time of the last event.';
COMMENT ON COLUMN flow_runs.ended_at IS 'Time of the terminal event; null while the run is open.';
COMMENT ON COLUMN flow_runs.dead_letter_id
    IS 'Dead letter of its drive task: until that is redriven, nothing wakes the run.';
COMMENT ON COLUMN flow_runs.priority IS 'Priority of its drive tasks; smaller is claimed first.';
COMMENT ON COLUMN flow_runs.attributes
    IS 'What the workflow set with set_attributes; null when it set nothing.';
COMMENT ON COLUMN flow_runs.listed_as
    IS 'What lists by status go by: open for pending, running and suspended, else the status.';
COMMENT ON COLUMN flow_runs.concurrency_key
    IS 'Runs of one key in one queue share its limit of leases.';

-- sql/tables/flow_active_hooks.sql
-- flow_active_hooks: the hooks that can still be resumed; a row goes when its hook is resolved, or
-- when its run ends or is asked to cancel.
-- The exclusion constraint makes a token unique and its hash index finds it: unlike a B-tree, it
-- takes tokens of any length. Its error would show the token, so writers check first and catch it.
CREATE TABLE flow_active_hooks (
    run_id text COLLATE "C" NOT NULL,
    hook_id text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    metadata json,
    payload_schema json,
    expires_at timestamptz,
    created_sequence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT flow_active_hooks_pkey PRIMARY KEY (run_id, hook_id),
    CONSTRAINT flow_active_hooks_token_excl EXCLUDE USING hash (token WITH =)
) WITH (
    -- rows come and go and are never updated; a fixed threshold keeps the index small
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE flow_active_hooks IS 'Hooks that can still be resumed.';
COMMENT ON COLUMN flow_active_hooks.run_id IS 'Run that owns the hook.';
COMMENT ON COLUMN flow_active_hooks.hook_id IS 'Id of the hook within its run.';
COMMENT ON COLUMN flow_active_hooks.token IS 'The bearer token; unique among active hooks. Secret.';
COMMENT ON COLUMN flow_active_hooks.metadata IS 'What the workflow attached to the hook.';
COMMENT ON COLUMN flow_active_hooks.payload_schema
    IS 'JSON Schema of the answer, if the workflow said what it waits for.';
COMMENT ON COLUMN flow_active_hooks.expires_at
    IS 'When the hook is disposed by itself; null for never.';
COMMENT ON COLUMN flow_active_hooks.created_sequence IS 'Sequence of its hook_created event.';
COMMENT ON COLUMN flow_active_hooks.created_at IS 'Time of its hook_created event.';

-- sql/tables/scheduled_wakeups.sql
-- scheduled_wakeups: the deadlines of open runs, and their steps in other queues, with or without
-- one.
-- A due row is turned into a drive task once (dispatched_at) and goes when the event that settles
-- it is appended, or when its run ends or is asked to cancel.
CREATE TABLE scheduled_wakeups (
    run_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    dispatched_at timestamptz,
    CONSTRAINT scheduled_wakeups_pkey PRIMARY KEY (run_id, kind, subject_id),
    CONSTRAINT scheduled_wakeups_kind_check
        CHECK (kind IN ('wait', 'step_retry', 'hook_expiry', 'step_deadline'))
) WITH (
    -- the due scan walks the index from its start, where the dead rows are: vacuum early, by count
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- A row is in exactly one of the two: the scheduler reads the first, readers merge both.
CREATE INDEX scheduled_wakeups_due_idx ON scheduled_wakeups (due_at, run_id, kind, subject_id)
    WHERE dispatched_at IS NULL;
CREATE INDEX scheduled_wakeups_dispatched_idx
    ON scheduled_wakeups (due_at, run_id, kind, subject_id)
    WHERE dispatched_at IS NOT NULL;

COMMENT ON TABLE scheduled_wakeups IS 'Deadlines of open runs.';
COMMENT ON COLUMN scheduled_wakeups.run_id IS 'Run that waits.';
COMMENT ON COLUMN scheduled_wakeups.kind
    IS 'wait, step_retry, hook_expiry, or step_deadline for a step in another queue.';
COMMENT ON COLUMN scheduled_wakeups.subject_id IS 'The wait, step or hook.';
COMMENT ON COLUMN scheduled_wakeups.due_at
    IS 'Deadline, rounded up to microseconds; infinity for a step that has none.';
COMMENT ON COLUMN scheduled_wakeups.dispatched_at
    IS 'When a drive task was made of it; null until then.';

-- sql/tables/flow_tasks.sql
-- flow_tasks: the queue. At most one open drive task a run; it is deleted when its holder releases
-- the run and nothing woke it meanwhile. Other kinds carry out a step, or
-- one verb of a client later.
-- Whoever touches a run's drive task holds the run lock, or never waits (claim, heartbeat).
CREATE TABLE flow_tasks (
    task_id bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    kind text COLLATE "C" NOT NULL DEFAULT 'drive_run',
    payload json,
    priority smallint NOT NULL DEFAULT 0,
    available_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    lease_owner text,
    lease_expires_at timestamptz,
    epoch bigint,
    wakes bigint NOT NULL DEFAULT 1,
    enqueued_at timestamptz NOT NULL,
    crashes integer NOT NULL DEFAULT 0,
    runtime_build text COLLATE "C" NOT NULL DEFAULT '',
    workflow_name text COLLATE "C",
    concurrency_key text COLLATE "C",
    dedupe_key text COLLATE "C",
    dedupe_until timestamptz,
    max_attempts integer,
    max_stalled integer,
    retry_delay interval,
    timeout interval,
    keep boolean NOT NULL DEFAULT false,
    last_error text COLLATE "C",
    missing_step text COLLATE "C",
    CONSTRAINT flow_tasks_pkey PRIMARY KEY (task_id),
    CONSTRAINT flow_tasks_kind_check CHECK (kind IN (
        'drive_run', 'resume_wait', 'resume_hook', 'resume_hook_by_token', 'dispose_hook',
        'dispose_hook_by_token', 'resume_scheduled_run', 'resume_due_waits',
        'resume_due_retries', 'run_step')),
    CONSTRAINT flow_tasks_run_check CHECK ((run_id IS NULL) = (kind IN (
        'resume_hook_by_token', 'dispose_hook_by_token', 'resume_due_waits',
        'resume_due_retries'))),
    CONSTRAINT flow_tasks_lease_check
        CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL))
) WITH (
    -- a short-lived table: vacuum by count, never by a share of a size that is mostly zero
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    -- payloads of any length move out of the way of the claim
    toast_tuple_target = 256
);

CREATE UNIQUE INDEX flow_tasks_drive_idx ON flow_tasks (run_id) WHERE kind = 'drive_run';
CREATE INDEX flow_tasks_step_idx ON flow_tasks (run_id) WHERE kind = 'run_step';
CREATE UNIQUE INDEX flow_tasks_dedupe_idx ON flow_tasks (dedupe_key) WHERE dedupe_key IS NOT NULL;
-- What can be claimed, lane by lane, in the order of claiming; leased tasks are not in the way.
CREATE INDEX flow_tasks_ready_idx
    ON flow_tasks (queue, priority, runtime_build, available_at, task_id)
    WHERE lease_owner IS NULL;
-- Leases: to find the expired ones, and to count the live ones.
-- Whoever looks a lease up by run or task asks whether lease_expires_at is there, which says the
-- same: lease_owner would let this index in, and a plan made while nothing was leased would walk
-- all leases for each one.
CREATE INDEX flow_tasks_leased_idx ON flow_tasks (queue, lease_expires_at, task_id)
    WHERE lease_owner IS NOT NULL;

COMMENT ON TABLE flow_tasks IS 'The queue of work for workers.';
COMMENT ON COLUMN flow_tasks.task_id IS 'Identity; ties in the order of claiming are broken by it.';
COMMENT ON COLUMN flow_tasks.queue IS 'Queue name.';
COMMENT ON COLUMN flow_tasks.run_id
    IS 'Run the task belongs to; null for kinds that address a token or all runs.';
COMMENT ON COLUMN flow_tasks.kind
    IS 'drive_run: replay the run; run_step: one attempt of a step; others: a client verb, later.';
COMMENT ON COLUMN flow_tasks.payload
    IS 'Argument of kinds that need one. That of a kind by token holds the token.';
COMMENT ON COLUMN flow_tasks.priority IS 'Smaller numbers are claimed first.';
COMMENT ON COLUMN flow_tasks.available_at IS 'Not claimed before this time.';
COMMENT ON COLUMN flow_tasks.attempts IS 'Claims, without those that were given back unused.';
COMMENT ON COLUMN flow_tasks.lease_owner IS 'Who holds the lease; null when nobody does.';
COMMENT ON COLUMN flow_tasks.lease_expires_at
    IS 'When the lease ends unless a heartbeat extends it.';
COMMENT ON COLUMN flow_tasks.epoch
    IS 'Fence of the lease, grows with each; for drive_run equal to flow_runs.lease_epoch.';
COMMENT ON COLUMN flow_tasks.wakes
    IS 'Counts the reasons to look; a release or completion that has seen fewer keeps the task.';
COMMENT ON COLUMN flow_tasks.enqueued_at IS 'When the task was made.';
COMMENT ON COLUMN flow_tasks.crashes IS 'Leases that expired: workers that were lost with it.';
COMMENT ON COLUMN flow_tasks.runtime_build
    IS 'Build that a worker must list to claim the task; empty when any will do.';
COMMENT ON COLUMN flow_tasks.workflow_name
    IS 'Workflow of the run, for claims by workflow; of a step, step: and its name.';
COMMENT ON COLUMN flow_tasks.concurrency_key
    IS 'Tasks of one key in one queue share its limit of leases.';
COMMENT ON COLUMN flow_tasks.dedupe_key
    IS 'Kind and SHA-256 of what is addressed; a second task of the key is not made.';
COMMENT ON COLUMN flow_tasks.dedupe_until
    IS 'From then on the key keeps no second task away; null: as long as this one is open.';
COMMENT ON COLUMN flow_tasks.max_attempts
    IS 'Failures after which it is a dead letter; null for 1.';
COMMENT ON COLUMN flow_tasks.max_stalled
    IS 'Crashes after which it is a dead letter; null for what the claim says.';
COMMENT ON COLUMN flow_tasks.retry_delay
    IS 'Delay after the first failure, doubled after each further one; null for none.';
COMMENT ON COLUMN flow_tasks.timeout IS 'How long one attempt may take; null for no limit.';
COMMENT ON COLUMN flow_tasks.keep IS 'Whether a line about it is kept in flow_finished_tasks.';
COMMENT ON COLUMN flow_tasks.missing_step
    IS 'Of a run: the step that the worker who gave it back did not have; null after a claim.';
COMMENT ON COLUMN flow_tasks.last_error IS 'What the last failed attempt said.';

-- sql/tables/flow_lanes.sql
-- flow_lanes: which (queue, priority, build) there are or were tasks of, and from where on it makes
-- sense to look. A claim reads each lane of flow_tasks_ready_idx from its mark: behind an old
-- snapshot the index keeps the entries of all tasks that were claimed since, and below the mark
-- there are no others.
-- Whoever makes a task and sees no row of its lane adds one, whatever others are adding at the
-- moment, so nobody waits and no lane is left out; the lowest mark counts, and claims remove the
-- doubles.
-- A claim that names workflows or kinds passes over tasks that it does not take. So that they need
-- not be read again each time, such claims have marks of their own beside those of the lanes: rows
-- with a digest of what they name, below whose mark there is nothing that they take.
CREATE TABLE flow_lanes (
    lane_id bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    runtime_build text COLLATE "C" NOT NULL,
    takes text COLLATE "C" NOT NULL DEFAULT '',
    low_water timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT flow_lanes_pkey PRIMARY KEY (lane_id)
) WITH (
    -- a few rows, each updated every few seconds at most
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

CREATE INDEX flow_lanes_lane_idx ON flow_lanes (queue, priority, runtime_build);

COMMENT ON TABLE flow_lanes IS 'The lanes of queues, and from where on a claim reads them.';
COMMENT ON COLUMN flow_lanes.lane_id IS 'Identity.';
COMMENT ON COLUMN flow_lanes.queue IS 'Queue name.';
COMMENT ON COLUMN flow_lanes.priority IS 'Priority of the tasks of the lane.';
COMMENT ON COLUMN flow_lanes.runtime_build IS 'Build of the tasks of the lane; empty for any.';
COMMENT ON COLUMN flow_lanes.takes
    IS 'Digest of the workflows and kinds that a claim names; empty for the lane itself.';
COMMENT ON COLUMN flow_lanes.low_water
    IS 'No task of the lane, or none that such a claim takes, became available before this time.';

-- sql/tables/flow_marks.sql
-- flow_marks: from where on it makes sense to read an index whose left edge only holds what is
-- done, as flow_lanes does for tasks. One row a queue for its leases, and one for all wakeups,
-- named ''. A row of a queue with a digest says when the lanes of such claims were looked at.
CREATE TABLE flow_marks (
    name text COLLATE "C" NOT NULL,
    takes text COLLATE "C" NOT NULL DEFAULT '',
    low_water timestamptz NOT NULL DEFAULT '-infinity',
    moved_at timestamptz NOT NULL DEFAULT 'epoch',
    swept_at timestamptz NOT NULL DEFAULT 'epoch',
    sweep_every interval NOT NULL DEFAULT '5 seconds',
    CONSTRAINT flow_marks_pkey PRIMARY KEY (name, takes)
) WITH (
    -- a few rows, each updated every few seconds at most
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

COMMENT ON TABLE flow_marks IS 'From where on the indexes of leases and wakeups are read.';
COMMENT ON COLUMN flow_marks.name IS 'A queue, for its leases, or nothing, for the wakeups.';
COMMENT ON COLUMN flow_marks.takes IS 'As flow_lanes.takes.';
COMMENT ON COLUMN flow_marks.low_water IS 'No lease expires and no wakeup is due before this time.';
COMMENT ON COLUMN flow_marks.moved_at IS 'When the mark was last looked at.';
COMMENT ON COLUMN flow_marks.swept_at
    IS 'When the index was last read below the mark, for rows that were committed late.';
COMMENT ON COLUMN flow_marks.sweep_every
    IS 'How long after that the next time comes: a hundred times what it took, at least 5 seconds.';

-- sql/tables/flow_queues.sql
-- flow_queues: what an operator has said about a queue. A queue without a row has no limits.
-- Limits are counted from live leases by whoever claims, so no slot can leak; a claim of a queue
-- with limits locks its row, and passes the queue over when another claim holds it.
CREATE TABLE flow_queues (
    queue text COLLATE "C" NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    max_running integer,
    max_per_key integer,
    rate_limit integer,
    rate_interval interval,
    rate_started_at timestamptz NOT NULL DEFAULT 'epoch',
    rate_used integer NOT NULL DEFAULT 0,
    notify boolean NOT NULL DEFAULT true,
    CONSTRAINT flow_queues_pkey PRIMARY KEY (queue),
    CONSTRAINT flow_queues_limits_check CHECK (
        max_running >= 0 AND max_per_key >= 1 AND rate_limit >= 0 AND rate_interval > '0'
        AND (rate_limit IS NULL) = (rate_interval IS NULL))
) WITH (
    -- the row of a queue with a rate is updated by every claim that takes something
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_queues IS 'Queues that are paused, limited, or never notified about.';
COMMENT ON COLUMN flow_queues.queue IS 'Queue name.';
COMMENT ON COLUMN flow_queues.paused IS 'Whether nothing is claimed from it.';
COMMENT ON COLUMN flow_queues.max_running IS 'Most live leases at a time; null for no limit.';
COMMENT ON COLUMN flow_queues.max_per_key
    IS 'Most live leases at a time of one concurrency key; null for no limit.';
COMMENT ON COLUMN flow_queues.rate_limit IS 'Most claims in rate_interval; null for no limit.';
COMMENT ON COLUMN flow_queues.rate_interval IS 'Length of the window of rate_limit.';
COMMENT ON COLUMN flow_queues.rate_started_at IS 'When the present window began.';
COMMENT ON COLUMN flow_queues.rate_used IS 'Claims in the present window.';
COMMENT ON COLUMN flow_queues.notify IS 'Whether idle listeners are told about new tasks.';

-- sql/tables/flow_idle_queues.sql
-- flow_idle_queues: queues on which somebody said that it is idle and listens. Whoever enqueues
-- takes the hint away and notifies: one notification for each time that somebody became idle.
-- Unlogged: a crash of the server ends every listener's connection, and each says again that it
-- is idle.
CREATE UNLOGGED TABLE flow_idle_queues (
    queue text COLLATE "C" NOT NULL,
    idle_until timestamptz,
    notified_at timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT flow_idle_queues_pkey PRIMARY KEY (queue)
) WITH (
    -- a row a queue, updated often and in place
    fillfactor = 20,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_idle_queues IS 'Queues that somebody listens to with nothing to do.';
COMMENT ON COLUMN flow_idle_queues.queue IS 'Queue name.';
COMMENT ON COLUMN flow_idle_queues.idle_until
    IS 'Until when the hint is good; null when a notification has answered it.';
COMMENT ON COLUMN flow_idle_queues.notified_at IS 'When the last notification was sent.';

-- sql/tables/flow_run_waiters.sql
-- flow_run_waiters: runs whose end somebody waits for, who wants to be told. Whatever ends a run
-- takes its row away and notifies. Unlogged: after a crash of the server those who wait look by
-- themselves, and say so again.
CREATE UNLOGGED TABLE flow_run_waiters (
    run_id text COLLATE "C" NOT NULL,
    waited_until timestamptz NOT NULL,
    CONSTRAINT flow_run_waiters_pkey PRIMARY KEY (run_id)
) WITH (
    -- a short-lived table: vacuum by count, never by a share of a size that is mostly zero
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000
);

COMMENT ON TABLE flow_run_waiters IS 'Runs whose end somebody wants to be told.';
COMMENT ON COLUMN flow_run_waiters.run_id IS 'Id of the run.';
COMMENT ON COLUMN flow_run_waiters.waited_until
    IS 'Until when somebody waits, unless that is said again.';

-- sql/tables/flow_dead_letters.sql
-- flow_dead_letters: tasks that gave up, and why, until somebody redrives or removes them.
-- The letter of a task by token holds no token: run and hook take its place when they are known.
CREATE TABLE flow_dead_letters (
    dead_letter_id bigint GENERATED ALWAYS AS IDENTITY,
    task_id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    payload json,
    reason text COLLATE "C" NOT NULL,
    last_error text COLLATE "C",
    attempts integer NOT NULL,
    crashes integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    dead_at timestamptz NOT NULL,
    policy jsonb NOT NULL,
    CONSTRAINT flow_dead_letters_pkey PRIMARY KEY (dead_letter_id)
);

CREATE INDEX flow_dead_letters_queue_idx ON flow_dead_letters (queue, dead_letter_id);
CREATE INDEX flow_dead_letters_run_idx ON flow_dead_letters (run_id) WHERE run_id IS NOT NULL;

COMMENT ON TABLE flow_dead_letters IS 'Tasks that gave up, and why.';
COMMENT ON COLUMN flow_dead_letters.dead_letter_id IS 'Identity.';
COMMENT ON COLUMN flow_dead_letters.task_id IS 'Identity of the task that was.';
COMMENT ON COLUMN flow_dead_letters.queue IS 'Queue of the task.';
COMMENT ON COLUMN flow_dead_letters.kind IS 'Kind of the task.';
COMMENT ON COLUMN flow_dead_letters.run_id
    IS 'Run of the task, or of the hook its token belonged to.';
COMMENT ON COLUMN flow_dead_letters.payload IS 'Payload of the task, without a token.';
COMMENT ON COLUMN flow_dead_letters.reason IS 'Why it gave up.';
COMMENT ON COLUMN flow_dead_letters.last_error IS 'What the last failed attempt said.';
COMMENT ON COLUMN flow_dead_letters.attempts IS 'Claims of the task.';
COMMENT ON COLUMN flow_dead_letters.crashes IS 'Workers that were lost with it.';
COMMENT ON COLUMN flow_dead_letters.enqueued_at IS 'When the task was made.';
COMMENT ON COLUMN flow_dead_letters.dead_at IS 'When it gave up.';
COMMENT ON COLUMN flow_dead_letters.policy
    IS 'Priority, retries and the like, for the task that a redrive makes.';

-- sql/tables/flow_finished_tasks.sql
-- flow_finished_tasks: one line about each finished task that was to be kept. No payload.
CREATE TABLE flow_finished_tasks (
    task_id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    attempts integer NOT NULL,
    crashes integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    CONSTRAINT flow_finished_tasks_pkey PRIMARY KEY (task_id)
);

COMMENT ON TABLE flow_finished_tasks IS 'Finished tasks that were to be kept.';
COMMENT ON COLUMN flow_finished_tasks.task_id IS 'Identity of the task.';
COMMENT ON COLUMN flow_finished_tasks.queue IS 'Queue of the task.';
COMMENT ON COLUMN flow_finished_tasks.kind IS 'Kind of the task.';
COMMENT ON COLUMN flow_finished_tasks.run_id IS 'Run of the task, if it named one.';
COMMENT ON COLUMN flow_finished_tasks.attempts IS 'Claims it took.';
COMMENT ON COLUMN flow_finished_tasks.crashes IS 'Workers that were lost with it.';
COMMENT ON COLUMN flow_finished_tasks.enqueued_at IS 'When the task was made.';
COMMENT ON COLUMN flow_finished_tasks.finished_at IS 'When it was completed.';

-- sql/tables/flow_workers.sql
-- flow_workers: who says that it is alive, and what it can do. Operators and waiting_for read it;
-- no lease depends on it.
CREATE TABLE flow_workers (
    worker_id text COLLATE "C" NOT NULL,
    runtime_build text COLLATE "C",
    builds text[] COLLATE "C",
    accepts_unpinned boolean NOT NULL DEFAULT true,
    host text COLLATE "C" NOT NULL,
    pid integer NOT NULL,
    queues text[] COLLATE "C" NOT NULL,
    workflows text[] COLLATE "C",
    steps text[] COLLATE "C",
    slots integer NOT NULL,
    running integer NOT NULL,
    started_at timestamptz NOT NULL,
    last_beat timestamptz NOT NULL,
    beat_every interval NOT NULL,
    CONSTRAINT flow_workers_pkey PRIMARY KEY (worker_id)
) WITH (
    -- a row a worker, updated in place
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

COMMENT ON TABLE flow_workers IS 'Workers that say that they are alive.';
COMMENT ON COLUMN flow_workers.worker_id IS 'Name that is unique to the process.';
COMMENT ON COLUMN flow_workers.runtime_build IS 'Build the worker runs.';
COMMENT ON COLUMN flow_workers.builds IS 'Builds whose runs it drives; null for all.';
COMMENT ON COLUMN flow_workers.accepts_unpinned IS 'Whether it drives runs of no build.';
COMMENT ON COLUMN flow_workers.host IS 'Host name.';
COMMENT ON COLUMN flow_workers.pid IS 'Process id on that host.';
COMMENT ON COLUMN flow_workers.queues IS 'Queues it claims from.';
COMMENT ON COLUMN flow_workers.workflows IS 'Workflows it knows; null for all.';
COMMENT ON COLUMN flow_workers.steps IS 'Steps it knows; null for all.';
COMMENT ON COLUMN flow_workers.slots IS 'How many runs it drives at a time.';
COMMENT ON COLUMN flow_workers.running IS 'How many it drove at the last beat.';
COMMENT ON COLUMN flow_workers.started_at IS 'Time of the first beat.';
COMMENT ON COLUMN flow_workers.last_beat IS 'Time of the last beat.';
COMMENT ON COLUMN flow_workers.beat_every
    IS 'How often it means to beat; alive until three are missed.';

-- sql/tables/flow_step_heartbeats.sql
-- flow_step_heartbeats: what the latest heartbeat of a step at work said, for its next attempt.
-- A row is written at most every half second a worker, goes when its step has its outcome, and at
-- the latest when its run ends or is asked to cancel.
CREATE TABLE flow_step_heartbeats (
    run_id text COLLATE "C" NOT NULL,
    step_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    beat_at timestamptz NOT NULL,
    details json NOT NULL,
    CONSTRAINT flow_step_heartbeats_pkey PRIMARY KEY (run_id, step_id)
) WITH (
    -- the same few rows are written again and again
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

COMMENT ON TABLE flow_step_heartbeats IS 'Details of the latest heartbeats of steps at work.';
COMMENT ON COLUMN flow_step_heartbeats.run_id IS 'Run of the step.';
COMMENT ON COLUMN flow_step_heartbeats.step_id IS 'The step.';
COMMENT ON COLUMN flow_step_heartbeats.attempt IS 'Attempt that gave the heartbeat.';
COMMENT ON COLUMN flow_step_heartbeats.beat_at IS 'When it was recorded.';
COMMENT ON COLUMN flow_step_heartbeats.details IS 'What the step said, its text as it came.';

-- sql/functions/queue/flow_add_lanes.sql
-- flow_add_lanes: trigger of flow_tasks: makes the lanes of new tasks known, and lowers the mark of
-- a lane that gets a task from before it. flow_move_lane does so for a task that is moved.
-- A lane that another transaction is moving right now is not lowered: the sweep of a claim finds
-- what that leaves out. So nobody waits here.
-- Locks: rows of flow_lanes, only when free. SQLSTATEs: none. Callers: the triggers.
CREATE FUNCTION flow_add_lanes() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_lane record;
BEGIN
    FOR v_lane IN
        SELECT n.queue, n.priority, n.runtime_build, n.earliest, k.is_known
          FROM (SELECT t.queue, t.priority, t.runtime_build, min(t.available_at) AS earliest
                  FROM new_tasks AS t
                 GROUP BY t.queue, t.priority, t.runtime_build) AS n
          LEFT JOIN LATERAL (
                SELECT bool_or(f.takes = '') AS is_known, max(f.low_water) AS low_water
                  FROM flow_lanes AS f
                 WHERE f.queue = n.queue AND f.priority = n.priority
                   AND f.runtime_build = n.runtime_build) AS k ON true
         WHERE k.is_known IS NOT TRUE OR k.low_water > n.earliest
    LOOP
        PERFORM flow_open_lane(v_lane.queue, v_lane.priority, v_lane.runtime_build,
                               v_lane.earliest, v_lane.is_known);
    END LOOP;
    RETURN NULL;
END
$$;

CREATE FUNCTION flow_move_lane() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM flow_open_lane(NEW.queue, NEW.priority, NEW.runtime_build, NEW.available_at, (
        SELECT bool_or(f.takes = '') FROM flow_lanes AS f
         WHERE f.queue = NEW.queue AND f.priority = NEW.priority
           AND f.runtime_build = NEW.runtime_build));
    RETURN NULL;
END
$$;

-- Adds a lane that is not known, and lowers its marks to a time before them.
CREATE FUNCTION flow_open_lane(
    p_queue text, p_priority smallint, p_build text, p_earliest timestamptz, p_is_known boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF p_is_known IS NOT TRUE THEN
        INSERT INTO flow_lanes (queue, priority, runtime_build)
        VALUES (p_queue, p_priority, p_build);
    END IF;
    UPDATE flow_lanes AS l
       SET low_water = p_earliest
      FROM (SELECT f.lane_id FROM flow_lanes AS f
             WHERE f.queue = p_queue AND f.priority = p_priority
               AND f.runtime_build = p_build AND f.low_water > p_earliest
               FOR UPDATE SKIP LOCKED) AS free
     WHERE l.lane_id = free.lane_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_add_lanes() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_move_lane() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_open_lane(text, smallint, text, timestamptz, boolean)
    FROM PUBLIC;
COMMENT ON FUNCTION flow_add_lanes() IS 'Makes the lanes of new tasks known.';
COMMENT ON FUNCTION flow_move_lane() IS 'Makes the lane known that a task was moved to.';
COMMENT ON FUNCTION flow_open_lane(text, smallint, text, timestamptz, boolean)
    IS 'Adds a lane that is not known, and lowers its marks.';

-- sql/functions/queue/flow_find_lanes.sql
-- flow_find_lanes: adds the lanes of a queue that the index of tasks has and flow_lanes does not
-- know. The index is read from lane to lane, not from task to task.
-- Arguments: p_queue. Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_find_lanes(p_queue text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_lane record;
    v_queue text := p_queue;
    v_priority smallint := -32768;
    v_build text := '';
    v_beyond timestamptz := '-infinity';
BEGIN
    LOOP
        SELECT t.queue, t.priority, t.runtime_build INTO v_lane
          FROM flow_tasks AS t
         WHERE t.lease_owner IS NULL
           AND (t.queue, t.priority, t.runtime_build, t.available_at)
               > (v_queue, v_priority, v_build, v_beyond)
         ORDER BY t.queue, t.priority, t.runtime_build, t.available_at, t.task_id
         LIMIT 1;
        EXIT WHEN NOT FOUND OR v_lane.queue <> p_queue;
        v_queue := v_lane.queue;
        v_priority := v_lane.priority;
        v_build := v_lane.runtime_build;
        v_beyond := 'infinity';  -- the end of this lane
        PERFORM FROM flow_lanes AS l
          WHERE l.queue = v_queue AND l.priority = v_priority AND l.runtime_build = v_build
            AND l.takes = '';
        IF NOT FOUND THEN
            INSERT INTO flow_lanes (queue, priority, runtime_build)
            VALUES (v_queue, v_priority, v_build);
        END IF;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_find_lanes(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_find_lanes(text) IS 'Adds the lanes of a queue that are not known yet.';

-- sql/triggers/flow_tasks_triggers.sql
-- The triggers of flow_tasks: every new task makes its lane known, whoever inserts it; so does one
-- that is moved to another lane. Claims and releases set none of these columns and fire nothing.
CREATE TRIGGER flow_tasks_lanes
    AFTER INSERT ON flow_tasks REFERENCING NEW TABLE AS new_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION flow_add_lanes();
CREATE TRIGGER flow_tasks_moved
    AFTER UPDATE OF queue, priority, runtime_build ON flow_tasks
    FOR EACH ROW EXECUTE FUNCTION flow_move_lane();

-- sql/functions/queue/flow_move_marks.sql
-- flow_move_marks: moves the marks of a queue's lanes and leases up to the first task and lease
-- that is still there. Called by every claim; it works at most every two seconds.
-- A mark stays two seconds behind the clock, for transactions that commit a moment after they have
-- read it. Every five seconds the index is read from its very start, for those that took longer,
-- and for lanes that were left out: that bounds how long a late task can be overlooked. Where that
-- takes long, because of what an old snapshot keeps, it is done less often, so that it never is
-- more than a hundredth of the work.
-- Arguments: p_queue, p_now. Nothing is moved in a transaction that keeps one snapshot.
-- Locks: rows of flow_lanes and flow_marks, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_move_marks(p_queue text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    c_margin CONSTANT interval := '2 seconds';
    v_lane record;
    v_first timestamptz;
    v_mark record;
    v_began timestamptz;
BEGIN
    IF flow_is_repeatable() OR NOT flow_mark_is_due(p_queue, p_now, c_margin) THEN
        RETURN;
    END IF;
    -- whoever has this row moves everything of the queue
    SELECT m.low_water, m.swept_at NOT BETWEEN p_now - m.sweep_every AND p_now AS sweeps
      INTO v_mark
      FROM flow_marks AS m
     WHERE m.name = p_queue AND m.takes = '' AND m.moved_at NOT BETWEEN p_now - c_margin AND p_now
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_began := flow_now();
    SELECT t.lease_expires_at INTO v_first
      FROM flow_tasks AS t
     WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
       AND t.lease_expires_at >= CASE WHEN v_mark.sweeps THEN '-infinity' ELSE v_mark.low_water END
       AND t.lease_expires_at <= p_now - c_margin
     ORDER BY t.lease_expires_at LIMIT 1;
    UPDATE flow_marks AS m
       SET low_water = coalesce(v_first, p_now - c_margin), moved_at = p_now,
           swept_at = CASE WHEN v_mark.sweeps THEN p_now ELSE m.swept_at END
     WHERE m.name = p_queue AND m.takes = '';

    IF v_mark.sweeps THEN
        PERFORM flow_find_lanes(p_queue);
        DELETE FROM flow_lanes AS l
              USING (SELECT f.lane_id FROM flow_lanes AS f
                      WHERE f.queue = p_queue AND EXISTS (
                            SELECT FROM flow_lanes AS e
                             WHERE e.queue = f.queue AND e.priority = f.priority
                               AND e.runtime_build = f.runtime_build AND e.takes = f.takes
                               AND e.lane_id < f.lane_id)
                        FOR UPDATE OF f SKIP LOCKED) AS doubles
              WHERE l.lane_id = doubles.lane_id;
    END IF;
    FOR v_lane IN
        SELECT l.lane_id, l.priority, l.runtime_build, l.low_water
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes = '' FOR UPDATE SKIP LOCKED
    LOOP
        SELECT t.available_at INTO v_first
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_lane.priority
           AND t.runtime_build = v_lane.runtime_build
           AND t.available_at >= CASE WHEN v_mark.sweeps THEN '-infinity'
                                      ELSE v_lane.low_water END
           AND t.available_at <= p_now - c_margin
         ORDER BY t.available_at LIMIT 1;
        UPDATE flow_lanes AS l
           SET low_water = coalesce(v_first, p_now - c_margin)
         WHERE l.lane_id = v_lane.lane_id;
    END LOOP;
    IF v_mark.sweeps THEN
        UPDATE flow_marks AS m
           SET sweep_every = greatest(interval '5 seconds', 100 * (flow_now() - v_began))
         WHERE m.name = p_queue AND m.takes = '';
    END IF;
END
$$;

-- Whether a mark was not looked at for so long, or at a time that is yet to come because the clock
-- was set back; adds the mark when it is not there.
CREATE FUNCTION flow_mark_is_due(
    p_name text, p_now timestamptz, p_margin interval, p_takes text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
DECLARE
    v_moved timestamptz;
BEGIN
    SELECT m.moved_at INTO v_moved
      FROM flow_marks AS m WHERE m.name = p_name AND m.takes = p_takes;
    IF NOT FOUND AND pg_try_advisory_xact_lock(flow_mark_key(p_takes || p_name)) THEN
        INSERT INTO flow_marks (name, takes) VALUES (p_name, p_takes) ON CONFLICT DO NOTHING;
        RETURN FOUND;
    END IF;
    RETURN coalesce(v_moved NOT BETWEEN p_now - p_margin AND p_now, false);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_move_marks(text, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_mark_is_due(text, timestamptz, interval, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_move_marks(text, timestamptz)
    IS 'Moves the marks of a queue up to the first task and lease that is still there.';
COMMENT ON FUNCTION flow_mark_is_due(text, timestamptz, interval, text)
    IS 'Whether a mark was not looked at for so long.';

-- sql/functions/wakeups/flow_move_wakeups_mark.sql
-- The mark of the wakeups: from where on the index of those that are not dispatched is read. Behind
-- an old snapshot the index keeps the entries of all that were dispatched since.
--   flow_move_wakeups_mark(now)    up to the first that is still there, every two seconds at most;
--                                  every five seconds the index is read from its very start, for
--                                  rows that were committed late; less often where that takes long
--   flow_lower_mark(name, time)    down to a new row from before it
-- Nothing is moved in a transaction that keeps one snapshot, and nobody is waited for.
-- Arguments: as named. Locks: rows of flow_marks, only when free. SQLSTATEs: none. Callers:
--   internal.
CREATE FUNCTION flow_move_wakeups_mark(p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    c_margin CONSTANT interval := '2 seconds';
    v_mark record;
    v_first timestamptz;
    v_began timestamptz := flow_now();
BEGIN
    IF flow_is_repeatable() OR NOT flow_mark_is_due('', p_now, c_margin) THEN
        RETURN;
    END IF;
    SELECT m.low_water, m.swept_at NOT BETWEEN p_now - m.sweep_every AND p_now AS sweeps
      INTO v_mark
      FROM flow_marks AS m
     WHERE m.name = '' AND m.takes = '' AND m.moved_at NOT BETWEEN p_now - c_margin AND p_now
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT w.due_at INTO v_first
      FROM scheduled_wakeups AS w
     WHERE w.dispatched_at IS NULL
       AND w.due_at >= CASE WHEN v_mark.sweeps THEN '-infinity' ELSE v_mark.low_water END
       AND w.due_at <= p_now - c_margin
     ORDER BY w.due_at LIMIT 1;
    UPDATE flow_marks AS m
       SET low_water = coalesce(v_first, p_now - c_margin), moved_at = p_now,
           swept_at = CASE WHEN v_mark.sweeps THEN p_now ELSE m.swept_at END,
           sweep_every = CASE WHEN v_mark.sweeps
               THEN greatest(interval '5 seconds', 100 * (flow_now() - v_began))
               ELSE m.sweep_every END
     WHERE m.name = '' AND m.takes = '';
END
$$;

CREATE FUNCTION flow_lower_mark(p_name text, p_time timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM FROM flow_marks AS m
      WHERE m.name = p_name AND m.takes = '' AND m.low_water > p_time;
    IF FOUND THEN
        UPDATE flow_marks AS m
           SET low_water = p_time
          FROM (SELECT f.name FROM flow_marks AS f
                 WHERE f.name = p_name AND f.takes = '' AND f.low_water > p_time
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE m.name = free.name AND m.takes = '';
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_move_wakeups_mark(timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_lower_mark(text, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_move_wakeups_mark(timestamptz)
    IS 'Moves the mark of the wakeups up to the first that is still there.';
COMMENT ON FUNCTION flow_lower_mark(text, timestamptz) IS 'Lowers a mark to a new row before it.';

-- sql/functions/fleet/flow_notify_idle.sql
-- flow_notify_idle: tells listeners that queues have work, if somebody said that it is idle.
--   flow_notify_idle(queues)   what everybody who enqueues calls
--   flow_channel()             the name of the channel, for LISTEN on a direct connection
-- The hint is taken away with the notification, so a fleet that is busy is told nothing: it finds
-- its work by claiming. The payload is the name of the queue and nothing else. Nobody waits here:
-- where another transaction holds the hint, and that may be one that stays open for long, or where
-- this one cannot write it because it keeps one snapshot, a notification is sent all the same.
-- Arguments: p_queues. Locks: rows of flow_idle_queues, only when free. SQLSTATEs: none.
-- Callers: internal; flow_channel: client, worker.
CREATE FUNCTION flow_notify_idle(p_queues text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_idle text[];
BEGIN
    SELECT array_agg(i.queue) INTO v_idle
      FROM flow_idle_queues AS i
     WHERE i.queue = ANY (p_queues) AND i.idle_until > v_now;
    IF v_idle IS NULL THEN
        RETURN;
    END IF;
    IF NOT flow_is_repeatable() THEN
        UPDATE flow_idle_queues AS i
           SET idle_until = NULL, notified_at = v_now
          FROM (SELECT f.queue FROM flow_idle_queues AS f
                 WHERE f.queue = ANY (v_idle) AND f.idle_until > v_now
                 ORDER BY f.queue
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE i.queue = free.queue;
    END IF;
    PERFORM pg_notify(flow_channel(), t.queue)
       FROM unnest(v_idle) AS t (queue)
      WHERE NOT EXISTS (SELECT FROM flow_queues AS q WHERE q.queue = t.queue AND NOT q.notify);
END
$$;

CREATE FUNCTION flow_channel() RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT 'flow_' || left(md5(current_schema()), 16)
$$;

REVOKE EXECUTE ON FUNCTION flow_notify_idle(text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_channel() FROM PUBLIC;
COMMENT ON FUNCTION flow_notify_idle(text[]) IS 'Tells idle listeners that queues have work.';
COMMENT ON FUNCTION flow_channel() IS 'Name of the channel to listen on.';

-- sql/functions/client/flow_await_run.sql
-- flow_await_run: says that somebody waits for the end of a run, and whether it has ended already.
--   flow_await_run(run, for)    asks to be told; to be repeated before p_for is over
--   flow_ended_channel()        the name of the channel, for LISTEN on a direct connection
--   flow_tell_ended(runs)       what ends runs calls: tells whoever waits for them
-- What is notified is the first 16 digits of the MD5 of the run id. It may get lost, so whoever
-- waits looks now and then. An end that is being committed while this is called is not told either:
-- look once more a moment later.
-- Arguments: p_run_id; p_for, at most ten minutes; p_run_ids, runs that this transaction has ended.
-- Locks: rows of flow_run_waiters. SQLSTATEs: WF001, WF010.
-- Callers: client, worker; flow_tell_ended: internal.
CREATE FUNCTION flow_await_run(p_run_id text, p_for interval DEFAULT '1 minute') RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_status text;
BEGIN
    IF p_for IS NULL OR p_for NOT BETWEEN interval '0' AND interval '10 minutes' THEN
        PERFORM flow_raise_argument('p_for', 'it must be from nothing to ten minutes');
    END IF;
    SELECT r.status INTO v_status
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    ELSIF flow_is_terminal(v_status) THEN
        RETURN true;
    END IF;
    INSERT INTO flow_run_waiters AS w (run_id, waited_until)
    VALUES (p_run_id, v_now + p_for)
        ON CONFLICT (run_id) DO UPDATE SET waited_until = excluded.waited_until
     WHERE w.waited_until < v_now + p_for / 2;
    -- it may have ended between the look and the row
    SELECT r.status INTO v_status FROM flow_runs AS r WHERE r.run_id = p_run_id;
    IF coalesce(flow_is_terminal(v_status), true) THEN
        DELETE FROM flow_run_waiters AS w WHERE w.run_id = p_run_id;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION flow_tell_ended(p_run_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_awaited text[];
BEGIN
    IF flow_is_repeatable() THEN
        SELECT array_agg(w.run_id) INTO v_awaited
          FROM flow_run_waiters AS w
         WHERE w.run_id = ANY (p_run_ids) AND w.waited_until > flow_now();
    ELSE
        WITH gone AS (
            DELETE FROM flow_run_waiters AS w
             WHERE w.run_id = ANY (p_run_ids)
            RETURNING w.run_id, w.waited_until
        )
        SELECT array_agg(g.run_id) INTO v_awaited FROM gone AS g WHERE g.waited_until > flow_now();
    END IF;
    PERFORM pg_notify(flow_ended_channel(), left(md5(u.run_id), 16))
       FROM unnest(v_awaited) AS u (run_id);
END
$$;

CREATE FUNCTION flow_ended_channel() RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT flow_channel() || '_ended'
$$;

REVOKE EXECUTE ON FUNCTION flow_await_run(text, interval) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_tell_ended(text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_ended_channel() FROM PUBLIC;
COMMENT ON FUNCTION flow_await_run(text, interval)
    IS 'Says that somebody waits for the end of a run.';
COMMENT ON FUNCTION flow_tell_ended(text[]) IS 'Tells whoever waits for the end of runs.';
COMMENT ON FUNCTION flow_ended_channel() IS 'Name of the channel of runs that ended.';

-- sql/types/flow_event_fact.sql
-- flow_event_fact: what the projection needs to know of one row of flow_event_log.
-- flags are its flow_event_flags; payload is filled only for run_created and hook_created;
-- event_type is null for a bundle.
CREATE TYPE flow_event_fact AS (
    run_id text,
    sequence bigint,
    event_type text,
    subject_id text,
    due_at timestamptz,
    payload json,
    recorded_at timestamptz,
    event_count integer,
    flags integer
);

COMMENT ON TYPE flow_event_fact IS 'What the projection needs to know of one stored row.';

-- sql/types/flow_run_change.sql
-- flow_run_change: what one append does to the row of one run.
-- flags is the union of flow_event_flags over its events; create_payload, created_at and
-- terminal_status are null unless the append holds such an event; is_broken says that its own
-- events cannot follow one another (a gap, run_created not first, something after the end).
CREATE TYPE flow_run_change AS (
    run_id text,
    first_sequence bigint,
    last_sequence bigint,
    flags integer,
    recorded_at timestamptz,
    create_payload json,
    created_at timestamptz,
    terminal_status text,
    is_broken boolean
);

COMMENT ON TYPE flow_run_change IS 'What one append does to the row of one run.';

-- sql/functions/project/flow_event_flags.sql
-- flow_event_flags: which projections an event touches, as bits; an event of another type touches
-- none but the head of its run.
--    1  may settle a delayed retry        2  sets a deadline
--    4  creates a hook                    8  settles a wait or a hook
--   16  asks for cancellation            32  ends the run
--   64  creates the run                 128  starts the run
--  256  sets attributes of the run    512  says that a hook was not created
-- Arguments: p_event_type, null for a bundle of step events; p_has_due (whether it carries a
--   deadline). The frequent types come first.
-- Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_event_flags(p_event_type text, p_has_due boolean) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'step_created' THEN 0
    WHEN 'step_started' THEN 1
    WHEN 'step_completed' THEN 1
    WHEN 'wait_created' THEN 2
    WHEN 'wait_completed' THEN 8
    WHEN 'wait_cancelled' THEN 8
    WHEN 'run_created' THEN 64
    WHEN 'run_started' THEN 128
    WHEN 'run_completed' THEN 32
    WHEN 'step_retrying' THEN CASE WHEN p_has_due THEN 3 ELSE 1 END
    WHEN 'hook_created' THEN CASE WHEN p_has_due THEN 6 ELSE 4 END
    WHEN 'hook_received' THEN 8
    WHEN 'hook_disposed' THEN 8
    WHEN 'hook_conflicted' THEN 512
    WHEN 'step_failed' THEN 1
    WHEN 'step_non_retryable' THEN 1
    WHEN 'step_cancelled' THEN 1
    WHEN 'run_cancellation_requested' THEN 16
    WHEN 'run_attributes_set' THEN 256
    ELSE CASE
        WHEN p_event_type IS NULL THEN 1
        WHEN flow_terminal_status(p_event_type) IS NULL THEN 0
        ELSE 32
    END
END;

CREATE FUNCTION flow_wakeup_kind(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN starts_with(p_event_type, 'wait_') THEN 'wait'
    WHEN starts_with(p_event_type, 'hook_') THEN 'hook_expiry'
    ELSE 'step_retry'
END;

REVOKE EXECUTE ON FUNCTION flow_event_flags(text, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_wakeup_kind(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_event_flags(text, boolean)
    IS 'Which projections an event touches, as bits.';
COMMENT ON FUNCTION flow_wakeup_kind(text)
    IS 'Kind of wakeup that a wait, hook or step event is about.';

-- sql/functions/project/flow_has_suspension.sql
-- flow_has_suspension: whether a run has an open hook, wait or delayed retry, or a step in another
-- queue.
-- Arguments: p_run_id. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_has_suspension(p_run_id text) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM flow_active_hooks AS h WHERE h.run_id = p_run_id)
    OR EXISTS (SELECT FROM scheduled_wakeups AS w WHERE w.run_id = p_run_id);

REVOKE EXECUTE ON FUNCTION flow_has_suspension(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_has_suspension(text)
    IS 'Whether a run has an open hook, wait or delayed retry, or a step in another queue.';

-- sql/functions/project/flow_spec.sql
-- What a workflow spec must have, and what the run's row takes from it.
--   flow_spec_refusal(spec)              what is wrong with a spec, or null
--   flow_refuse_spec(run, payload)       raises that for a run_created event
-- Arguments: JSON values; p_run_id for the error.
-- Locks: none. SQLSTATEs: WF009, WF013 from flow_refuse_spec. Callers: internal.
-- What drivers cannot read is refused here: a run that was created with it could never be driven.
CREATE FUNCTION flow_spec_refusal(p_spec json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_name json;
    v_version json;
    v_build json;
    v_runtime json;
    v_entrypoint json;
    v_export json;
BEGIN
    IF p_spec IS NULL OR json_typeof(p_spec) <> 'object' THEN
        RETURN 'the workflow spec is not a JSON object';
    END IF;
    v_name := flow_json_get(p_spec, 'name');
    v_version := flow_json_get(p_spec, 'version');
    v_build := flow_json_get(p_spec, 'runtime_build');
    v_runtime := flow_json_get(p_spec, 'runtime');
    IF NOT flow_json_is_name(v_name, 255) THEN
        RETURN 'the workflow spec needs a name: a string, not blank, of at most 255 characters';
    ELSIF NOT flow_json_is_name(v_version, 255) THEN
        RETURN 'the workflow spec needs a version: a string, not blank, of at most 255 characters';
    ELSIF json_typeof(v_build) <> 'null' AND NOT flow_json_is_name(v_build, 128) THEN
        RETURN 'the runtime_build of the workflow spec is not a string, blank, or over 128 '
               'characters';
    ELSIF v_runtime IS NOT NULL THEN
        v_entrypoint := flow_json_get(v_runtime, 'entrypoint');
        v_export := flow_json_get(v_runtime, 'export_name');
        IF json_typeof(v_runtime) <> 'object' OR NOT flow_json_is_name(v_entrypoint, 512)
            OR (v_export IS NOT NULL AND NOT flow_json_is_name(v_export, 512))
            OR flow_json_get(v_runtime, 'type')::text
               NOT IN ('"python"', '"rust_embedded"', '"native_ts"')
        THEN
            RETURN 'the runtime of the workflow spec, if there is one, needs an entrypoint and a '
                   'type: python, rust_embedded or native_ts';
        END IF;
    END IF;
    RETURN 'the workflow spec cannot be read: ' || flow_json_refusal(p_spec);
END
$$;

CREATE FUNCTION flow_refuse_spec(p_run_id text, p_payload json) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    PERFORM flow_raise_transition(p_run_id, coalesce(
        flow_spec_refusal(flow_json_get(p_payload, 'spec')), 'the workflow spec is not valid'));
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_spec_refusal(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_refuse_spec(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_spec_refusal(json) IS 'What is wrong with a workflow spec, or null.';
COMMENT ON FUNCTION flow_refuse_spec(text, json)
    IS 'Raises what is wrong with a run_created event.';

-- sql/functions/project/flow_refuse_projection.sql
-- flow_refuse_projection: raises the error of events that cannot follow the stream of their run.
-- Arguments: p_change, the change that did not fit the run's row.
-- Locks: none. SQLSTATEs: WF004 something after the end; WF009 a gap, or run_created not first.
-- Callers: internal.
CREATE FUNCTION flow_refuse_projection(p_change flow_run_change) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_head bigint;
    v_status text;
BEGIN
    SELECT r.head_sequence, r.status INTO v_head, v_status
      FROM flow_runs AS r WHERE r.run_id = p_change.run_id;
    IF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_change.run_id, v_status);
    ELSIF NOT p_change.is_broken AND v_head IS NOT NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, format(
            'event %s does not follow event %s', p_change.first_sequence, v_head));
    ELSIF p_change.first_sequence = 1 AND p_change.create_payload IS NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, 'the first event must be run_created');
    ELSIF p_change.first_sequence > 1 AND p_change.create_payload IS NOT NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, 'run_created can only be the first event');
    ELSIF v_head IS NULL AND p_change.create_payload IS NULL THEN
        PERFORM flow_raise_transition(p_change.run_id, format(
            'event %s has no event before it', p_change.first_sequence));
    ELSIF p_change.terminal_status IS NOT NULL THEN
        PERFORM flow_raise_terminal(p_change.run_id, p_change.terminal_status);
    ELSE
        PERFORM flow_raise_transition(p_change.run_id, format(
            'events %s to %s have a gap', p_change.first_sequence, p_change.last_sequence));
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_refuse_projection(flow_run_change) FROM PUBLIC;
COMMENT ON FUNCTION flow_refuse_projection(flow_run_change)
    IS 'Raises the error of events that cannot follow the stream of their run.';

-- sql/functions/project/flow_raise_token_conflict.sql
-- flow_raise_token_conflict: raises WF005 for a hook whose token belongs to another active hook.
-- Arguments: the run and hook that wanted the token, and the run and hook that own it. Never the
--   token itself.
-- Locks: none. SQLSTATEs: WF005. Callers: internal.
CREATE FUNCTION flow_raise_token_conflict(
    p_run_id text, p_hook_id text, p_owner_run_id text, p_owner_hook_id text
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF005',
        format('run %s cannot create hook %s: its token belongs to hook %s of run %s',
            p_run_id, p_hook_id, p_owner_hook_id, p_owner_run_id),
        jsonb_build_object('run_id', p_owner_run_id, 'hook_id', p_owner_hook_id,
            'requested_run_id', p_run_id, 'requested_hook_id', p_hook_id),
        'Use another token, or resume or dispose the hook that owns it.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_raise_token_conflict(text, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_raise_token_conflict(text, text, text, text) IS 'Raises WF005.';

-- sql/functions/project/flow_project_hooks.sql
-- flow_project_hooks: brings flow_active_hooks up to date with newly stored events.
-- Arguments: p_events, all of them; p_flags, the union of their flow_event_flags.
--   Only the last event about a hook counts: a hook that is created and settled in the same append
--   leaves no row, and one created after a cancellation request stays. A hook that was refused its
--   token has no row: the history alone knows of it.
-- Locks, in order: token locks, sorted; then rows. The run locks are the caller's.
-- SQLSTATEs: WF005 the token belongs to another active hook; WF009 the hook is active with another
--   token, or is said to be refused its token although it was created. Callers: internal.
CREATE FUNCTION flow_project_hooks(p_events flow_event_fact[], p_flags integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_runs text[];
    v_hooks text[];
    v_tokens text[];
    v_events flow_event_fact[];
    v_clash record;
BEGIN
    IF p_flags & 512 <> 0 THEN
        SELECT e.run_id, e.subject_id AS hook_id INTO v_clash
          FROM unnest(p_events) AS e
         WHERE e.event_type = 'hook_conflicted'
           AND EXISTS (
                SELECT FROM flow_event_log AS l
                 WHERE l.run_id = e.run_id AND l.subject_id = e.subject_id
                   AND l.event_type IN ('hook_created', 'hook_conflicted')
                   AND l.sequence < e.sequence)
         LIMIT 1;
        IF FOUND THEN
            PERFORM flow_raise_transition(v_clash.run_id,
                format('hook %s exists already', v_clash.hook_id));
        END IF;
    END IF;
    IF p_flags & 48 <> 0 THEN
        DELETE FROM flow_active_hooks AS h
              USING unnest(p_events) AS e
              WHERE h.run_id = e.run_id AND flow_clears(e.event_type);
    END IF;
    IF p_flags & 8 <> 0 THEN
        DELETE FROM flow_active_hooks AS h
              USING unnest(p_events) AS e
              WHERE h.run_id = e.run_id AND h.hook_id = e.subject_id
                AND e.event_type IN ('hook_received', 'hook_disposed');
    END IF;
    IF p_flags & 4 = 0 THEN
        RETURN;
    END IF;

    SELECT array_agg(c.run_id), array_agg(c.subject_id),
           array_agg(flow_json_get_text(c.payload, 'token')), array_agg(c.fact)
      INTO v_runs, v_hooks, v_tokens, v_events
      FROM (SELECT e.run_id, e.subject_id, e.payload, e.sequence, e.event_type, e AS fact,
                   max(e.sequence) FILTER (WHERE flow_clears(e.event_type))
                       OVER (PARTITION BY e.run_id COLLATE "C") AS cleared_at,
                   max(e.sequence) FILTER (
                       WHERE e.event_type IN ('hook_received', 'hook_disposed'))
                       OVER (PARTITION BY e.run_id COLLATE "C", e.subject_id COLLATE "C")
                       AS settled_at
              FROM unnest(p_events) AS e
             WHERE e.event_type IN ('hook_created', 'hook_received', 'hook_disposed')
                OR flow_clears(e.event_type)
             -- of events that create the same hook the first is the one that is kept
             ORDER BY e.sequence) AS c
     WHERE c.event_type = 'hook_created'
       AND c.sequence > coalesce(greatest(c.cleared_at, c.settled_at), 0);
    IF v_runs IS NULL THEN
        RETURN;
    END IF;

    PERFORM flow_lock_tokens(v_tokens);
    SELECT w.run_id, w.hook_id, h.run_id AS owner_run_id, h.hook_id AS owner_hook_id INTO v_clash
      FROM unnest(v_runs, v_hooks, v_tokens) AS w (run_id, hook_id, token)
      JOIN flow_active_hooks AS h ON h.token = w.token
     WHERE (h.run_id, h.hook_id) <> (w.run_id, w.hook_id)
     LIMIT 1;
    IF FOUND THEN
        PERFORM flow_raise_token_conflict(
            v_clash.run_id, v_clash.hook_id, v_clash.owner_run_id, v_clash.owner_hook_id);
    END IF;
    SELECT w.run_id, w.hook_id INTO v_clash
      FROM unnest(v_runs, v_hooks, v_tokens) AS w (run_id, hook_id, token)
      JOIN flow_active_hooks AS h ON h.run_id = w.run_id AND h.hook_id = w.hook_id
     WHERE w.token IS NULL OR h.token <> w.token
     LIMIT 1;
    IF FOUND THEN
        PERFORM flow_raise_transition(v_clash.run_id,
            format('hook %s is active with another token', v_clash.hook_id));
    END IF;

    BEGIN
        INSERT INTO flow_active_hooks
            (run_id, hook_id, token, metadata, payload_schema, expires_at, created_sequence,
             created_at)
        SELECT e.run_id, e.hook_id, v_tokens[e.n], flow_json_get(e.payload, 'metadata'),
               flow_json_get(e.payload, 'payload_schema'), e.due_at, e.sequence, e.recorded_at
          FROM unnest(v_events) WITH ORDINALITY
               AS e (run_id, sequence, event_type, hook_id, due_at, payload, recorded_at,
                     event_count, flags, n)
            ON CONFLICT (run_id, hook_id) DO NOTHING;
    EXCEPTION
        -- two hooks of these events share a token; the error itself would show it
        WHEN exclusion_violation THEN
            PERFORM flow_raise_token_conflict(v_runs[1], v_hooks[1], v_runs[1], v_hooks[1]);
    END;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_hooks(flow_event_fact[], integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_hooks(flow_event_fact[], integer)
    IS 'Brings flow_active_hooks up to date with newly stored events.';

-- sql/functions/project/flow_project_wakeups.sql
-- flow_project_wakeups: brings scheduled_wakeups up to date with newly stored events.
-- Arguments: p_events, all of them; p_flags, the union of their flow_event_flags; p_run_ids, their
--   runs. Only the last event about a subject counts.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_project_wakeups(
    p_events flow_event_fact[], p_flags integer, p_run_ids text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    IF p_flags & 48 <> 0 THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND flow_clears(e.event_type);
        -- few steps give heartbeats, and their rows have gone by now
        IF EXISTS (SELECT FROM flow_step_heartbeats AS h WHERE h.run_id = ANY (p_run_ids)) THEN
            DELETE FROM flow_step_heartbeats AS h
                  USING unnest(p_events) AS e
                  WHERE h.run_id = e.run_id AND flow_clears(e.event_type);
        END IF;
    END IF;
    IF p_flags & 8 <> 0 THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND w.subject_id = e.subject_id
                AND w.kind = flow_wakeup_kind(e.event_type)
                AND e.flags = 8;
    END IF;
    -- most appends hold step events and few runs have a delayed retry, or a step in another queue:
    -- look once a run, not once an event
    IF p_flags & 1 <> 0 AND EXISTS (
        SELECT FROM scheduled_wakeups AS w
         WHERE w.run_id = ANY (p_run_ids) AND w.kind IN ('step_retry', 'step_deadline'))
    THEN
        DELETE FROM scheduled_wakeups AS w
              USING unnest(p_events) AS e
              WHERE w.run_id = e.run_id AND w.subject_id = e.subject_id
                AND CASE w.kind WHEN 'step_retry' THEN e.flags = 1
                                WHEN 'step_deadline' THEN e.flags & 1 <> 0 END;
        -- an append with a delayed retry of its own has no bundle
        DELETE FROM scheduled_wakeups AS w
              USING (SELECT l.run_id, u.subject_id, u.event_type
                       FROM (SELECT e.run_id, e.sequence FROM unnest(p_events) AS e
                              WHERE e.event_type IS NULL) AS b
                      CROSS JOIN LATERAL (
                            SELECT f.run_id, f.sequence, f.payload, f.event_count
                              FROM flow_event_log AS f
                             WHERE f.run_id = b.run_id AND f.sequence = b.sequence LIMIT 1) AS l
                      CROSS JOIN LATERAL flow_unbundle(l.payload, l.sequence, l.event_count) AS u
                    ) AS s
              WHERE w.run_id = s.run_id AND w.subject_id = s.subject_id
                AND w.kind IN ('step_retry', 'step_deadline') AND s.event_type <> 'step_created';
    END IF;
    IF p_flags & 2 = 0 THEN
        RETURN;
    END IF;

    INSERT INTO scheduled_wakeups AS w (run_id, kind, subject_id, due_at)
    SELECT DISTINCT ON (c.run_id, c.kind, c.subject_id) c.run_id, c.kind, c.subject_id, c.due_at
      FROM (SELECT e.run_id, e.kind, e.subject_id, e.sequence, e.due_at, e.flags,
                   max(e.sequence) FILTER (WHERE e.flags & 48 <> 0)
                       OVER (PARTITION BY e.run_id) AS cleared_at,
                   max(e.sequence) FILTER (WHERE e.flags IN (1, 8))
                       OVER (PARTITION BY e.run_id, e.kind, e.subject_id) AS settled_at
              FROM (SELECT f.run_id COLLATE "C" AS run_id, f.subject_id COLLATE "C" AS subject_id,
                           f.sequence, f.due_at, flow_wakeup_kind(f.event_type) AS kind,
                           f.flags
                      FROM unnest(p_events) AS f OFFSET 0) AS e
             WHERE e.flags & 59 <> 0) AS c
     WHERE c.due_at IS NOT NULL AND c.flags & 2 <> 0
       AND c.sequence > coalesce(greatest(c.cleared_at, c.settled_at), 0)
     ORDER BY c.run_id, c.kind, c.subject_id, c.sequence DESC
        ON CONFLICT (run_id, kind, subject_id) DO UPDATE
       SET due_at = excluded.due_at, dispatched_at = NULL;
    PERFORM flow_lower_mark('', (SELECT min(e.due_at) FROM unnest(p_events) AS e));
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_wakeups(flow_event_fact[], integer, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_wakeups(flow_event_fact[], integer, text[])
    IS 'Brings scheduled_wakeups up to date with newly stored events.';

-- sql/functions/project/flow_project_created.sql
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

-- sql/functions/project/flow_project_runs.sql
-- flow_project_runs: brings flow_runs up to date: head, status, times. It also is the guard of the
-- stream for every writer: a change that does not follow the head of its run is refused.
-- Arguments: p_changes, one a run; p_all_begin, whether each of them does nothing but create its
--   run, so that there is no row to bring up to date. Hooks and wakeups must be up to date: whether
--   any is open makes the difference between running and suspended.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: WF004, WF009, WF013. Callers: internal.
CREATE FUNCTION flow_project_runs(
    p_changes flow_run_change[], p_all_begin boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_change flow_run_change;
    v_done text[];
    v_moved integer := 0;
BEGIN
    IF NOT p_all_begin THEN
        UPDATE flow_runs AS r
           SET head_sequence = c.last_sequence,
               status = CASE
                   WHEN c.terminal_status IS NOT NULL THEN c.terminal_status
                   WHEN c.flags & 16 <> 0 OR r.status = 'cancelling' THEN 'cancelling'
                   WHEN r.status = 'pending' AND c.flags & 128 = 0 THEN 'pending'
                   -- a run that is running or has not started has nothing open, so only a new
                   -- opening can suspend it
                   WHEN (r.status NOT IN ('running', 'pending') OR c.flags & 6 <> 0)
                        AND flow_has_suspension(r.run_id) THEN 'suspended'
                   ELSE 'running'
               END,
               updated_at = c.recorded_at,
               ended_at = CASE WHEN c.terminal_status IS NOT NULL THEN c.recorded_at END,
               blocked_reason = CASE WHEN r.dead_letter_id IS NOT NULL
                                          AND c.terminal_status IS NULL
                                     THEN r.blocked_reason END
          FROM unnest(p_changes) AS c
         WHERE r.run_id = c.run_id
           AND c.flags & 64 = 0
           AND r.head_sequence = c.first_sequence - 1
           AND r.status NOT IN ('completed', 'failed', 'cancelled', 'continued_as_new');
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        IF v_moved = cardinality(p_changes) THEN
            RETURN;
        END IF;
    END IF;

    IF v_moved > 0 THEN
        v_done := ARRAY(
            SELECT c.run_id
              FROM unnest(p_changes) AS c
              JOIN flow_runs AS r ON r.run_id = c.run_id
             WHERE c.flags & 64 = 0 AND r.head_sequence = c.last_sequence);
    END IF;
    v_done := coalesce(v_done, '{}') || flow_project_created(p_changes);
    IF cardinality(v_done) = cardinality(p_changes) THEN
        RETURN;
    END IF;

    FOREACH v_change IN ARRAY p_changes LOOP
        IF v_change.run_id <> ALL (v_done) THEN
            PERFORM flow_refuse_projection(v_change);
        END IF;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_runs(flow_run_change[], boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_runs(flow_run_change[], boolean)
    IS 'Brings flow_runs up to date and refuses what does not follow the head.';

-- sql/functions/project/flow_project_attributes.sql
-- flow_project_attributes: brings flow_runs.attributes up to date with newly stored events.
-- Arguments: p_events, all of them. Attributes of several events of a run are set in their order; a
--   null takes one away.
-- Locks: rows. The run locks are the caller's. SQLSTATEs: WF009 what is set is not an object, or
--   holds what jsonb cannot. Callers: internal.
CREATE FUNCTION flow_project_attributes(p_events flow_event_fact[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_event flow_event_fact;
BEGIN
    FOREACH v_event IN ARRAY p_events LOOP
        IF v_event.event_type = 'run_attributes_set'
            AND (coalesce(json_typeof(flow_json_get(v_event.payload, 'attributes')), '') <> 'object'
                 OR strpos(flow_json_shield(v_event.payload::text), E'\x7f3') > 0)
        THEN
            PERFORM flow_raise_transition(v_event.run_id,
                'its attributes are not an object of plain texts, numbers, true and false');
        END IF;
    END LOOP;
    UPDATE flow_runs AS r
       SET attributes = nullif(
               jsonb_strip_nulls(coalesce(r.attributes, '{}') || c.attributes), '{}')
      FROM (SELECT e.run_id, jsonb_object_agg(a.key, a.value ORDER BY e.sequence) AS attributes
              FROM unnest(p_events) AS e
             CROSS JOIN LATERAL json_each(e.payload -> 'attributes') AS a
             WHERE e.event_type = 'run_attributes_set'
             GROUP BY e.run_id) AS c
     WHERE r.run_id = c.run_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_attributes(flow_event_fact[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project_attributes(flow_event_fact[])
    IS 'Brings flow_runs.attributes up to date with newly stored events.';

-- sql/functions/project/flow_project.sql
-- flow_project: brings every projection up to date with newly stored events.
-- Arguments: p_events, events of any number of runs, stored by this transaction. Called by the
--   trigger on flow_event_log; a store that cannot have the trigger may call it after its own
--   insert.
-- Locks, in order: run locks when they are free (a direct writer then counts as their holder;
--   it must not wait for them, because it has inserted already), token locks, rows.
-- SQLSTATEs: WF004, WF005, WF009. Callers: internal.
CREATE FUNCTION flow_project(p_events flow_event_fact[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_changes flow_run_change[];
    v_run_ids text[];
    v_flags integer;
    v_broken boolean;
    v_change flow_run_change;
BEGIN
    SELECT bit_or(e.flags) INTO v_flags FROM unnest(p_events) AS e;
    IF v_flags & 224 = 0 THEN
        -- nothing begins or ends: the usual append, summed up with less work
        SELECT array_agg(ROW(s.run_id, s.first_sequence, s.last_sequence, s.flags, s.recorded_at,
                   NULL, NULL, NULL, s.is_broken)::flow_run_change),
               array_agg(s.run_id), bool_or(s.is_broken)
          INTO v_changes, v_run_ids, v_broken
          FROM (SELECT e.run_id, min(e.sequence - e.event_count + 1) AS first_sequence,
                       max(e.sequence) AS last_sequence, max(e.recorded_at) AS recorded_at,
                       bit_or(e.flags) AS flags,
                       min(e.sequence) = 1
                           OR max(e.sequence) - min(e.sequence - e.event_count)
                              <> sum(e.event_count)
                           AS is_broken
                  FROM unnest(p_events) AS e
                 GROUP BY e.run_id) AS s;
    ELSIF v_flags = 64 THEN
        -- runs begin and nothing else, one event each: a thousand groups would spill to disk
        SELECT array_agg(ROW(e.run_id, e.sequence, e.sequence, 64, e.recorded_at, e.payload,
                   e.recorded_at, NULL, e.sequence <> 1)::flow_run_change),
               array_agg(e.run_id), bool_or(e.sequence <> 1)
          INTO v_changes, v_run_ids, v_broken
          FROM unnest(p_events) AS e;
    ELSE
        SELECT array_agg(ROW(s.run_id, s.first_sequence, s.last_sequence, s.flags, s.recorded_at,
                   s.create_payload, s.created_at, s.terminal_status, s.is_broken)
                   ::flow_run_change),
               array_agg(s.run_id), bool_or(s.is_broken)
          INTO v_changes, v_run_ids, v_broken
          FROM (SELECT f.run_id, min(f.sequence - f.event_count + 1) AS first_sequence,
                       max(f.sequence) AS last_sequence, max(f.recorded_at) AS recorded_at,
                       bit_or(f.flags) AS flags,
                       (array_agg(f.payload) FILTER (WHERE f.flags = 64))[1] AS create_payload,
                       min(f.recorded_at) FILTER (WHERE f.flags = 64) AS created_at,
                       max(flow_terminal_status(f.event_type)) FILTER (WHERE f.flags = 32)
                           AS terminal_status,
                       max(f.sequence) - min(f.sequence - f.event_count)
                               <> sum(f.event_count)
                           OR bool_or((f.flags = 64) <> (f.sequence - f.event_count = 0))
                           OR coalesce(min(f.sequence) FILTER (WHERE f.flags = 32)
                                       < max(f.sequence), false) AS is_broken
                  FROM unnest(p_events) AS f
                 GROUP BY f.run_id) AS s;
    END IF;
    IF v_broken THEN
        FOREACH v_change IN ARRAY v_changes LOOP
            IF v_change.is_broken THEN
                PERFORM flow_refuse_projection(v_change);
            END IF;
        END LOOP;
    END IF;

    PERFORM pg_try_advisory_xact_lock(flow_run_key(i.run_id)) FROM unnest(v_run_ids) AS i (run_id);
    IF v_flags & 572 <> 0 THEN
        PERFORM flow_project_hooks(p_events, v_flags);
    END IF;
    IF v_flags & 59 <> 0 THEN
        PERFORM flow_project_wakeups(p_events, v_flags, v_run_ids);
    END IF;
    PERFORM flow_project_runs(v_changes, v_flags = 64);
    IF v_flags & 256 <> 0 THEN
        PERFORM flow_project_attributes(p_events);
    END IF;
    IF v_flags & 32 <> 0 THEN
        PERFORM flow_tell_ended(ARRAY(
            SELECT c.run_id FROM unnest(v_changes) AS c WHERE c.terminal_status IS NOT NULL));
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project(flow_event_fact[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_project(flow_event_fact[])
    IS 'Brings every projection up to date with newly stored events.';

-- sql/functions/project/flow_project_events.sql
-- flow_project_events: trigger function of flow_event_log; hands the stored events to flow_project.
-- Statement level, so that its cost is per append and not per event. It is right for every writer,
-- also for one that inserts directly.
-- Locks and SQLSTATEs: those of flow_project. Callers: the trigger.
CREATE FUNCTION flow_project_events() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_events flow_event_fact[];
BEGIN
    SELECT array_agg(ROW(n.run_id, n.sequence, n.event_type, n.subject_id, n.due_at,
               CASE WHEN n.event_type IN ('run_created', 'hook_created', 'run_attributes_set')
                    THEN n.payload END,
               n.recorded_at, n.event_count,
               flow_event_flags(n.event_type, n.due_at IS NOT NULL))::flow_event_fact)
      INTO v_events
      FROM new_events AS n;
    IF v_events IS NOT NULL THEN
        PERFORM flow_project(v_events);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_project_events() FROM PUBLIC;
COMMENT ON FUNCTION flow_project_events() IS 'Trigger function: projects newly stored events.';

-- sql/triggers/flow_event_log_triggers.sql
-- The triggers of flow_event_log: projection, shape guard, append-only guard.
-- The shape guard is a condition: its function runs only for a row that is refused, so an ordinary
-- insert pays for the comparison alone. The condition is planned anew for every statement, hence
-- spelled out in built-in functions; flow_event_refusal says the same and finds the words.
CREATE TRIGGER flow_event_log_guard
    BEFORE INSERT ON flow_event_log
    FOR EACH ROW
    WHEN (NEW.run_id IS NULL OR NEW.sequence IS NULL OR NEW.sequence < NEW.event_count
          OR NEW.event_count < 1 OR NEW.event_count IS NULL
          OR NEW.transaction_id IS NULL OR NEW.schema_version < 1 OR NEW.recorded_at IS NULL
          -- beyond these years drivers have no times
          OR NEW.recorded_at < '0001-01-01 00:00:00+00'
          OR NEW.recorded_at >= '10000-01-01 00:00:00+00'
          OR NEW.payload IS NULL
          OR CASE
                 WHEN NEW.event_type IS NULL
                     THEN NEW.subject_id IS NOT NULL OR NEW.due_at IS NOT NULL
                          OR NEW.event_id IS NOT NULL OR NEW.schema_version IS NOT NULL
                          OR NEW.sequence = NEW.event_count
                          OR octet_length(NEW.payload::text) > 1048576
                          -- what flow_unbundle needs to come to an end whatever the items are
                          OR CASE WHEN json_typeof(NEW.payload) = 'array'
                                 THEN json_array_length(NEW.payload) <> NEW.event_count
                                 ELSE true
                             END
                          OR strpos(NEW.payload::text, '\u') > 0
                             AND (strpos(NEW.payload::text, '\u0000') > 0
                                  OR strpos(NEW.payload::text, '\ud') > 0
                                  OR strpos(NEW.payload::text, '\uD') > 0)
                 ELSE NEW.event_count <> 1
                      OR NEW.due_at < '0001-01-01 00:00:00+00'
                      OR NEW.due_at >= '10000-01-01 00:00:00+00'
                      OR octet_length(NEW.event_type) NOT BETWEEN 1 AND 200
                      OR (NEW.subject_id IS NULL AND NOT starts_with(NEW.event_type, 'run_'))
                      OR octet_length(NEW.subject_id) > 2048 OR btrim(NEW.subject_id) = ''
                      OR (NEW.due_at IS NULL AND NEW.event_type = 'wait_created')
                      OR json_typeof(NEW.payload) <> 'object'
                      OR octet_length(NEW.payload::text) > 1048576
             END)
    EXECUTE FUNCTION flow_refuse_event();

CREATE TRIGGER flow_event_log_project
    AFTER INSERT ON flow_event_log
    REFERENCING NEW TABLE AS new_events
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_project_events();

CREATE TRIGGER flow_event_log_append_only
    BEFORE UPDATE OR DELETE ON flow_event_log
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

CREATE TRIGGER flow_event_log_no_truncate
    BEFORE TRUNCATE ON flow_event_log
    FOR EACH STATEMENT
    EXECUTE FUNCTION flow_refuse_change();

COMMENT ON TRIGGER flow_event_log_guard ON flow_event_log
    IS 'Refuses a row of the wrong shape without showing it.';
COMMENT ON TRIGGER flow_event_log_project ON flow_event_log
    IS 'Keeps flow_runs, flow_active_hooks and scheduled_wakeups.';
COMMENT ON TRIGGER flow_event_log_append_only ON flow_event_log IS 'History is append-only.';
COMMENT ON TRIGGER flow_event_log_no_truncate ON flow_event_log IS 'History is append-only.';

-- sql/types/flow_append_event.sql
-- flow_append_event: one event of an append, as read from the batch.
-- due_in_us: the deadline is the time of the append plus so many microseconds.
-- event_type null: a bundle of event_count step events, the last of them at event_position.
-- token and linked_run_id are taken out of the payload of hook_created and child_operation_linked.
CREATE TYPE flow_append_event AS (
    event_position integer,
    event_type text,
    subject_id text,
    due_at timestamptz,
    due_in_us bigint,
    payload json,
    event_id uuid,
    token text,
    linked_run_id text,
    event_count integer
);

COMMENT ON TYPE flow_append_event IS 'One event of an append, as read from the batch.';

-- sql/types/flow_append_element.sql
-- flow_append_element: one element of an append batch: the events of one run.
-- refusal says why the element cannot be stored whatever the state of its run is, as an object with
-- sqlstate and reason; null when nothing is wrong with it.
CREATE TYPE flow_append_element AS (
    ordinal integer,
    run_id text,
    expected bigint,
    epoch bigint,
    release bigint,
    queue text,
    event_count integer,
    creates boolean,
    has_token boolean,
    has_link boolean,
    refusal json,
    events flow_append_event[]
);

COMMENT ON TYPE flow_append_element IS 'One element of an append batch: the events of one run.';

-- sql/types/flow_append_verdict.sql
-- flow_append_verdict: what becomes of one element of an append batch.
-- base is the head before the append, null when the run does not exist; terminal says whether the
-- run had ended before.
CREATE TYPE flow_append_verdict AS (
    outcome text,
    base bigint,
    is_terminal boolean,
    detail json
);

COMMENT ON TYPE flow_append_verdict IS 'What becomes of one element of an append batch.';

-- sql/functions/append/flow_append_read_events.sql
-- flow_append_read_events: takes the events of one element of an append batch apart.
-- Arguments: p_events, array of {"type", "subject"?, "due_at"?, "due_in_us"?, "payload",
--   "event_id"?}; p_shielded, whether the text went through flow_json_shield.
-- refusal is null, or says as {"sqlstate", "reason", ...} why the event can never be stored.
-- Locks: none. SQLSTATEs: class 22 when a value has the wrong JSON type. Callers: internal.
-- No search_path, so that it is inlined into its caller; names in the body are bound at creation.
-- The member of the payload that repeats the deadline of an event, or null when it has none.
CREATE FUNCTION flow_due_member(p_event_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_event_type
    WHEN 'wait_created' THEN 'resume_at'
    WHEN 'step_retrying' THEN 'retry_after'
    WHEN 'hook_created' THEN 'expires_at'
END;

CREATE FUNCTION flow_append_read_events(p_events json, p_shielded boolean)
RETURNS TABLE (
    event_position integer, event_type text, subject_id text, due_at timestamptz, due_in_us bigint,
    payload json, event_id uuid, token text, linked_run_id text, refusal json
)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT e.event_position, e.event_type, e.subject_id, e.due_at, e.due_in_us, e.payload,
           e.event_id, e.token, e.linked_run_id,
           CASE
               WHEN r.reason IS NULL THEN NULL
               WHEN r.bytes > 1048576 THEN json_build_object(
                   'sqlstate', 'WF012', 'reason', r.reason, 'event_type', e.event_type,
                   'bytes', r.bytes, 'max_bytes', 1048576)
               ELSE json_build_object('sqlstate', 'WF009', 'reason', r.reason)
           END AS refusal
      FROM (
        SELECT x.ordinal::integer AS event_position,
               flow_text_unshield(p_shielded, x.type) AS event_type,
               flow_text_unshield(p_shielded, x.subject) AS subject_id,
               CASE WHEN x.due_at IS NOT NULL THEN flow_deadline(x.due_at) END AS due_at,
               x.due_in_us,
               CASE
                   WHEN x.payload IS NULL THEN '{}'::json
                   WHEN p_shielded THEN flow_json_unshield(x.payload::text)::json
                   ELSE x.payload
               END AS payload,
               x.event_id,
               CASE WHEN x.type = 'hook_created'
                   THEN flow_text_unshield(p_shielded, x.payload ->> 'token') END AS token,
               CASE WHEN x.type = 'child_operation_linked'
                   THEN flow_text_unshield(p_shielded, x.payload -> 'child' ->> 'flow_run_id')
               END AS linked_run_id
          FROM ROWS FROM (json_to_recordset(p_events) AS (
                   type text, subject text, due_at text, due_in_us bigint, payload json,
                   event_id uuid))
               WITH ORDINALITY AS x (type, subject, due_at, due_in_us, payload, event_id, ordinal)
        -- keeps the values apart from the questions below, which would compute them again and again
        OFFSET 0
      ) AS e
     CROSS JOIN LATERAL (
        SELECT b.bytes,
               CASE
                   WHEN e.event_type = 'hook_created' AND coalesce(e.token, '') = ''
                       THEN 'a hook_created event has no token'
                   WHEN e.due_in_us IS NOT NULL AND (e.due_at IS NOT NULL
                           OR e.due_in_us NOT BETWEEN 0 AND 250000000000000000
                           OR flow_due_member(e.event_type) IS NULL)
                       THEN 'due_in_us is out of range, beside due_at, or not for this event'
                   WHEN b.bytes > 1048576
                       THEN 'the payload of a ' || flow_event_name(e.event_type)
                           || ' event is too large'
                   ELSE flow_event_refusal(e.event_type, e.subject_id,
                       e.due_at IS NOT NULL OR e.due_in_us IS NOT NULL, e.payload)
               END AS reason
          -- the deadline that will be added to the payload has 64 bytes at most
          FROM (SELECT octet_length(e.payload::text)
                       + CASE WHEN e.due_in_us IS NULL THEN 0 ELSE 64 END AS bytes) AS b
      ) AS r;
END;

REVOKE EXECUTE ON FUNCTION flow_append_read_events(json, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_due_member(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_read_events(json, boolean)
    IS 'Takes the events of one append apart.';
COMMENT ON FUNCTION flow_due_member(text)
    IS 'Payload member that repeats the deadline of an event.';

-- sql/functions/append/flow_append_examine.sql
-- flow_append_examine: takes a batch of appends apart that may have something wrong with it, and
-- says what; one row an event, no bundles.
-- Arguments, result, SQLSTATEs: as flow_append_read, which looks whether this is needed.
-- Locks: none. Callers: internal.
CREATE FUNCTION flow_append_examine(p_batch json, p_shielded boolean) RETURNS flow_append_element[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_elements flow_append_element[];
BEGIN
    SELECT array_agg(ROW(b.ordinal, b.run_id, b.expected, b.epoch, b.release, b.queue,
               coalesce(s.event_count, 0), coalesce(s.creates, false),
               coalesce(s.has_token, false), coalesce(s.has_link, false),
               CASE
                   WHEN NOT r.has_run_id THEN json_build_object('sqlstate', 'WF013',
                       'reason', 'a run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + -')
                   WHEN r.reason IS NOT NULL
                       THEN json_build_object('sqlstate', 'WF009', 'reason', r.reason)
                   ELSE s.refusal
               END,
               s.events)::flow_append_element)
      INTO v_elements
      FROM (
        SELECT flow_text_unshield(p_shielded, x.run_id) AS run_id, x.expected, x.epoch, x.release,
               coalesce(flow_text_unshield(p_shielded, x.queue), 'default') AS queue,
               CASE WHEN x.steps IS NULL THEN x.events
                    ELSE flow_append_spread(x.events, x.steps, coalesce(x.before, 0)) END AS events,
               x.ordinal
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json, steps json, before integer))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, steps, before,
                   ordinal)
        OFFSET 0
      ) AS b
     CROSS JOIN LATERAL (
        SELECT count(*)::integer AS event_count,
               bool_or(v.event_type = 'run_created') AS creates,
               bool_or(v.token IS NOT NULL) AS has_token,
               bool_or(v.linked_run_id IS NOT NULL) AS has_link,
               (array_agg(v.refusal) FILTER (WHERE v.refusal IS NOT NULL))[1] AS refusal,
               max(v.event_position) FILTER (WHERE v.event_type = 'run_created') AS created_at,
               min(v.event_position) FILTER (WHERE flow_terminal_status(v.event_type) IS NOT NULL)
                   AS ended_at,
               array_agg(ROW(v.event_position, v.event_type, v.subject_id, v.due_at, v.due_in_us,
                   v.payload, v.event_id, v.token, v.linked_run_id, 1)::flow_append_event)
                   AS events
          FROM flow_append_read_events(b.events, p_shielded) AS v
      ) AS s
     CROSS JOIN LATERAL (
        SELECT CASE WHEN s.creates THEN flow_run_id_is_valid(b.run_id)
                    ELSE coalesce(octet_length(b.run_id) BETWEEN 1 AND 255, false)
               END AS has_run_id,
               CASE
                   WHEN octet_length(b.queue) > 255 OR btrim(b.queue) = ''
                       THEN 'a queue name has 1 to 255 bytes and is not blank'
                   WHEN b.release IS NOT NULL AND b.epoch IS NULL
                       THEN 'a release needs the epoch of the lease'
                   WHEN b.release IS NULL AND s.event_count = 0
                       THEN 'there is neither an event nor a release'
                   WHEN s.created_at > 1 THEN 'run_created can only be the first event of a run'
                   WHEN s.ended_at < s.event_count THEN 'an event follows the end of the run'
                   WHEN s.creates
                       THEN flow_spec_refusal(flow_json_get((s.events[1]).payload, 'spec'))
               END AS reason
      ) AS r;
    RETURN v_elements;
END
$$;

-- The events of an element whose steps came as a bundle, as one array.
CREATE FUNCTION flow_append_spread(p_events json, p_steps json, p_before integer) RETURNS json
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (
        SELECT json_agg(m.event ORDER BY m.place, m.n)
          FROM (SELECT CASE WHEN a.n <= p_before THEN 0 ELSE 2 END AS place, a.n, a.event
                  FROM json_array_elements(p_events) WITH ORDINALITY AS a (event, n)
                UNION ALL
                SELECT 1, u.sequence, json_build_object('type',
                           CASE WHEN json_array_length(u.item) = 2
                                THEN nullif(u.event_type, 'step_unreadable') END,
                           'subject', u.subject_id, 'payload', u.payload)
                  FROM ROWS FROM (flow_unbundle(p_steps, 0, 0), json_array_elements(p_steps))
                       AS u (sequence, event_type, subject_id, payload, item)) AS m);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_examine(json, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_spread(json, json, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_examine(json, boolean)
    IS 'Takes a batch of appends apart and says what is wrong with it.';
COMMENT ON FUNCTION flow_append_spread(json, json, integer)
    IS 'The events of an element whose steps came as a bundle.';

-- sql/functions/append/flow_append_read.sql
-- flow_append_read: takes a batch of appends apart.
-- Arguments: p_batch, the array that flow_append_many takes; p_shielded, whether its text went
--   through flow_json_shield.
-- Returns one element a run with its events; what can never be stored is marked, not raised.
-- Locks: none. SQLSTATEs: class 22 when a value has the wrong JSON type: the caller then reads the
--   elements one by one to find the one at fault. Callers: internal.
CREATE FUNCTION flow_append_read(p_batch json, p_shielded boolean) RETURNS flow_append_element[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_elements flow_append_element[];
    v_is_fine boolean;
BEGIN
    IF NOT p_shielded THEN
        -- most batches have nothing wrong with them: look for the words only when something has
        SELECT array_agg(ROW(x.ordinal, x.run_id, x.expected, x.epoch, x.release,
                   coalesce(x.queue, 'default'), s.event_count + coalesce(b.steps, 0), false,
                   s.kinds & 1 <> 0, s.kinds & 2 <> 0, NULL,
                   CASE WHEN x.steps IS NULL THEN s.events
                        ELSE array_append(s.events, ROW(coalesce(x.before, 0) + b.steps, NULL, NULL,
                            NULL, NULL, x.steps, NULL, NULL, NULL, b.steps)::flow_append_event)
                   END)::flow_append_element),
               bool_and((s.is_fine AND octet_length(x.run_id) BETWEEN 1 AND 255
                         AND x.queue IS NULL
                         AND CASE
                                 WHEN x.steps IS NULL THEN x.before IS NULL
                                 -- the deadlines of retries are told apart one by one
                                 ELSE b.is_fine AND s.kinds & 4 = 0
                                      AND octet_length(x.steps::text) <= 1048576
                                      AND coalesce(x.before, 0) BETWEEN 0 AND s.event_count
                             END
                         AND CASE WHEN x.release IS NULL
                                  THEN s.event_count > 0 OR x.steps IS NOT NULL
                                  ELSE x.epoch IS NOT NULL END) IS TRUE)
          INTO v_elements, v_is_fine
          FROM ROWS FROM (json_to_recordset(p_batch) AS (
                   run_id text, expected bigint, epoch bigint, release bigint, queue text,
                   events json, steps json, before integer))
               WITH ORDINALITY AS x (run_id, expected, epoch, release, queue, events, steps, before,
                   ordinal)
         CROSS JOIN LATERAL (
            SELECT count(*)::integer AS steps,
                   bool_and(i.item::text LIKE '["_",{"step\_id":"_%}]'
                            AND substr(i.item::text, 3, 1) IN ('d', 'c', 's', 'C', 'S')
                            AND substr(i.item::text, 18, 1) NOT IN ('"', ' ')
                            AND json_array_length(i.item) = 2
                            AND (octet_length(i.item::text) <= 2048
                                 OR octet_length(i.item -> 1 ->> 'step_id') <= 2048)) AS is_fine
              FROM json_array_elements(x.steps) AS i (item)
            ) AS b
         CROSS JOIN LATERAL (
            SELECT count(*)::integer AS event_count,
                   coalesce(bit_or(CASE v.type WHEN 'hook_created' THEN 1
                                               WHEN 'child_operation_linked' THEN 2
                                               WHEN 'step_retrying' THEN 4 END), 0) AS kinds,
                   coalesce(bool_and((
                       octet_length(v.type) BETWEEN 1 AND 200
                       AND CASE WHEN starts_with(v.type, 'run_') THEN v.type <> 'run_created'
                                ELSE v.subject IS NOT NULL END
                       AND (v.subject IS NULL OR octet_length(v.subject) <= 2048
                                                 AND btrim(v.subject) <> '')
                       AND (v.payload IS NULL OR json_typeof(v.payload) = 'object'
                                                 AND octet_length(v.payload::text) <= 1048512)
                       AND CASE
                               WHEN v.due_in_us IS NOT NULL
                                   THEN v.due_at IS NULL AND flow_due_member(v.type) IS NOT NULL
                                        AND v.due_in_us BETWEEN 0 AND 250000000000000000
                               WHEN v.type = 'wait_created' THEN v.due_at IS NOT NULL
                               ELSE true
                           END
                       AND (v.type <> 'hook_created' OR coalesce(v.payload ->> 'token', '') <> '')
                   ) IS TRUE), true)
                   -- nothing follows an end
                   AND coalesce(min(v.ordinal) FILTER (
                           WHERE starts_with(v.type, 'run_')
                             AND flow_terminal_status(v.type) IS NOT NULL)
                       >= CASE WHEN x.steps IS NULL OR x.before < count(*) OR x.before IS NULL
                               THEN count(*) ELSE count(*) + 1 END, true) AS is_fine,
                   array_agg(ROW(v.ordinal + CASE WHEN v.ordinal > x.before OR x.before IS NULL
                                                  THEN coalesce(b.steps, 0) ELSE 0 END,
                       v.type, v.subject,
                       CASE WHEN v.due_at IS NOT NULL THEN flow_deadline(v.due_at) END,
                       v.due_in_us, coalesce(v.payload, '{}'), v.event_id,
                       CASE WHEN v.type = 'hook_created' THEN v.payload ->> 'token' END,
                       CASE WHEN v.type = 'child_operation_linked'
                           THEN v.payload -> 'child' ->> 'flow_run_id' END, 1)::flow_append_event)
                       AS events
              FROM ROWS FROM (json_to_recordset(x.events) AS (
                       type text, subject text, due_at text, due_in_us bigint, payload json,
                       event_id uuid))
                   WITH ORDINALITY AS v (type, subject, due_at, due_in_us, payload, event_id,
                       ordinal)
         ) AS s;
        IF coalesce(v_is_fine, true) THEN
            RETURN v_elements;
        END IF;
    END IF;
    RETURN flow_append_examine(p_batch, p_shielded);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_read(json, boolean) IS 'Takes a batch of appends apart.';

-- sql/functions/append/flow_append_parse.sql
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

-- sql/functions/append/flow_append_check.sql
-- flow_append_check: decides about every element of a batch, under the locks of their runs.
-- Arguments: p_elements, as read from the batch. Returns one verdict an element, in order.
-- The order of the questions: is it well formed; does the run exist; is the lease valid; is the
-- head as expected; has the run ended. flow_append_check_claims asks the rest: do linked runs
-- exist; are tokens free.
-- Locks: none; the caller holds run and token locks. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_check(p_elements flow_append_element[]) RETURNS flow_append_verdict[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_verdicts flow_append_verdict[];
    v_repeats boolean;
    v_runs integer;
BEGIN
    -- nearly always all is well; the words for everything else are looked for only when needed
    SELECT array_agg(ROW('appended', r.head_sequence, false, NULL)::flow_append_verdict
                     ORDER BY e.ordinal),
           count(DISTINCT e.run_id)
      INTO v_verdicts, v_runs
      FROM unnest(p_elements) AS e
      JOIN flow_runs AS r ON r.run_id = e.run_id
     WHERE e.refusal IS NULL AND NOT e.creates
       AND (e.epoch IS NULL OR e.epoch = r.lease_epoch)
       AND (e.expected IS NULL OR e.expected = r.head_sequence)
       AND r.head_sequence > 0
       AND r.status NOT IN ('completed', 'failed', 'cancelled', 'continued_as_new');
    IF v_runs = cardinality(p_elements) THEN
        RETURN v_verdicts;
    END IF;
    SELECT count(DISTINCT e.run_id) < count(e.run_id) INTO v_repeats FROM unnest(p_elements) AS e;
    SELECT array_agg(ROW(c.outcome, c.head, coalesce(c.status
               IN ('completed', 'failed', 'cancelled', 'continued_as_new'), false),
               CASE c.outcome
                   WHEN 'appended' THEN NULL
                   WHEN 'invalid' THEN coalesce(c.refusal, json_build_object('sqlstate', 'WF010',
                       'reason', 'the run occurs more than once in the batch'))
                   WHEN 'event_conflict' THEN json_build_object(
                       'expected', CASE WHEN c.creates THEN 0 ELSE c.expected END,
                       'actual', coalesce(c.head, 0))
                   WHEN 'lease_lost' THEN json_build_object(
                       'epoch', c.epoch, 'current', coalesce(c.lease_epoch, 0))
                   WHEN 'run_terminal' THEN json_build_object('status', c.status)
                   ELSE '{}'::json
               END)::flow_append_verdict ORDER BY c.ordinal)
      INTO v_verdicts
      FROM (
        SELECT e.ordinal, e.creates, e.expected, e.epoch, e.refusal, r.head, r.status,
               r.lease_epoch,
               CASE
                   WHEN e.refusal IS NOT NULL THEN 'invalid'
                   WHEN v_repeats AND EXISTS (
                        SELECT FROM unnest(p_elements) AS o
                         WHERE o.run_id = e.run_id AND o.ordinal < e.ordinal
                           AND o.refusal IS NULL) THEN 'invalid'
                   WHEN r.head IS NULL AND NOT e.creates THEN 'run_not_found'
                   WHEN e.epoch IS NOT NULL AND e.epoch <> coalesce(r.lease_epoch, 0)
                       THEN 'lease_lost'
                   WHEN e.creates AND (r.head IS NOT NULL OR e.expected <> 0)
                       THEN 'event_conflict'
                   WHEN NOT e.creates AND e.expected <> r.head THEN 'event_conflict'
                   WHEN e.event_count > 0
                        AND r.status IN ('completed', 'failed', 'cancelled', 'continued_as_new')
                       THEN 'run_terminal'
                   ELSE 'appended'
               END AS outcome
          FROM unnest(p_elements) AS e
          LEFT JOIN LATERAL (
                SELECT f.head_sequence AS head, f.status, f.lease_epoch
                  FROM flow_runs AS f
                 WHERE f.run_id = e.run_id AND f.head_sequence > 0
                 LIMIT 1) AS r ON true
      ) AS c;
    RETURN v_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check(flow_append_element[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check(flow_append_element[])
    IS 'Decides about every element of an append batch.';

-- sql/functions/append/flow_append_open_hooks.sql
-- What an element of an append does to hooks.
--   flow_append_open_hooks(element)             its hook_created events whose hooks stay open
--   flow_append_settles(elements, run, hook)    whether one of the elements settles that hook
-- Arguments: as named. Locks: none. SQLSTATEs: none. Callers: internal.
-- Names in a RETURN body are bound at creation, so no search_path is needed.
CREATE FUNCTION flow_append_open_hooks(p_element flow_append_element) RETURNS flow_append_event[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- one pass and one sort, whatever the number of hooks
RETURN ARRAY(
    SELECT o.event
      FROM (SELECT v AS event, v.event_position, v.event_type,
                   max(v.event_position) FILTER (WHERE flow_clears(v.event_type)) OVER ()
                       AS cleared_at,
                   max(v.event_position) FILTER (
                       WHERE v.event_type IN ('hook_received', 'hook_disposed'))
                       OVER (PARTITION BY v.subject_id COLLATE "C") AS settled_at
              FROM unnest((p_element).events) AS v
             WHERE v.event_type IN ('hook_created', 'hook_received', 'hook_disposed')
                OR flow_clears(v.event_type)) AS o
     WHERE o.event_type = 'hook_created'
       AND o.event_position > coalesce(greatest(o.cleared_at, o.settled_at), 0)
     ORDER BY o.event_position);

CREATE FUNCTION flow_append_settles(
    p_elements flow_append_element[], p_run_id text, p_hook_id text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN EXISTS (
    SELECT FROM unnest(p_elements) AS e
     CROSS JOIN LATERAL unnest(e.events) AS v
     WHERE e.run_id = p_run_id
       AND (flow_clears(v.event_type)
            OR (v.subject_id = p_hook_id AND v.event_type IN ('hook_received', 'hook_disposed'))));

REVOKE EXECUTE ON FUNCTION flow_append_open_hooks(flow_append_element) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_settles(flow_append_element[], text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_open_hooks(flow_append_element)
    IS 'The hook_created events of an element whose hooks stay open.';
COMMENT ON FUNCTION flow_append_settles(flow_append_element[], text, text)
    IS 'Whether one of the elements settles a hook.';

-- sql/functions/append/flow_append_check_claims.sql
-- flow_append_check_claims: refuses the elements that link a run which does not exist, or want a
-- hook token which is not theirs to take.
-- Arguments: p_elements and p_verdicts, as read and decided so far. Returns the verdicts, changed.
-- Elements count in their order, as if they were appended one after the other; within an element
-- its net effect counts. A token is free when no active hook has it, when the hook that has it is
-- settled by this element or an earlier one, or when the same hook of the same run asks again. An
-- active hook cannot change its token.
-- One look at all wanted hooks finds the few, usually none, that another one may stand in the way
-- of; only those are gone through, so that the cost grows with the number of hooks.
-- Locks: none; the caller holds run and token locks. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_append_check_claims(
    p_elements flow_append_element[], p_verdicts flow_append_verdict[]
) RETURNS flow_append_verdict[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_element flow_append_element;
    v_accepted flow_append_element[] := '{}';
    v_wanted record;
    -- wanted hooks that have something in common with each other or with an active hook
    v_suspect_ordinals integer[];
    v_suspect_hooks text[];
    v_suspect_tokens text[];
    -- those of them that accepted elements of this batch leave open
    v_runs text[] := '{}';
    v_hooks text[] := '{}';
    v_tokens text[] := '{}';
    v_before integer;
    v_missing text;
    v_owner record;
BEGIN
    SELECT array_agg(s.ordinal ORDER BY s.ordinal, s.event_position),
           array_agg(s.hook_id ORDER BY s.ordinal, s.event_position),
           array_agg(s.token ORDER BY s.ordinal, s.event_position)
      INTO v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens
      FROM (SELECT w.ordinal, w.event_position, w.hook_id, w.token,
                   o.run_id IS NOT NULL AS is_active,
                   count(*) OVER (PARTITION BY w.token) AS of_token,
                   count(*) OVER (PARTITION BY w.ordinal, w.hook_id) AS of_hook
              FROM (SELECT e.ordinal, e.run_id, v.event_position,
                           v.subject_id COLLATE "C" AS hook_id, v.token COLLATE "C" AS token
                      FROM unnest(p_elements) AS e
                     CROSS JOIN LATERAL unnest(flow_append_open_hooks(e)) AS v
                     WHERE e.has_token AND (p_verdicts[e.ordinal]).outcome = 'appended') AS w
              LEFT JOIN LATERAL (
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.token = w.token AND (h.run_id <> w.run_id OR h.hook_id <> w.hook_id)
                       AND NOT (h.run_id = w.run_id AND (h.run_id, h.hook_id) IN (
                            -- settled by the same element: in nobody's way. Not correlated, so that
                            -- it is computed once and hashed
                            SELECT e.run_id COLLATE "C", v.subject_id COLLATE "C"
                              FROM unnest(p_elements) AS e
                             CROSS JOIN LATERAL unnest(e.events) AS v
                             WHERE v.event_type IN ('hook_received', 'hook_disposed')
                               AND v.subject_id IS NOT NULL AND e.run_id IS NOT NULL
                               AND (p_verdicts[e.ordinal]).outcome = 'appended'))
                    UNION ALL
                    SELECT h.run_id
                      FROM flow_active_hooks AS h
                     WHERE h.run_id = w.run_id AND h.hook_id = w.hook_id AND h.token <> w.token
                     LIMIT 1) AS o ON true) AS s
     WHERE s.is_active OR s.of_token > 1 OR s.of_hook > 1;
    IF v_suspect_ordinals IS NULL
       AND NOT EXISTS (SELECT FROM unnest(p_elements) AS e WHERE e.has_link)
    THEN
        RETURN p_verdicts;
    END IF;

    FOREACH v_element IN ARRAY p_elements LOOP
        CONTINUE WHEN (p_verdicts[v_element.ordinal]).outcome <> 'appended';
        IF v_element.has_link THEN
            SELECT v.linked_run_id INTO v_missing
              FROM unnest(v_element.events) AS v
             WHERE v.linked_run_id <> v_element.run_id
               AND NOT EXISTS (SELECT FROM flow_runs AS r
                                WHERE r.run_id = v.linked_run_id AND r.head_sequence > 0)
               AND NOT EXISTS (SELECT FROM unnest(v_accepted) AS a
                                WHERE a.run_id = v.linked_run_id)
             LIMIT 1;
            IF FOUND THEN
                p_verdicts[v_element.ordinal].outcome := 'link_not_found';
                p_verdicts[v_element.ordinal].detail :=
                    json_build_object('flow_run_id', v_missing);
                CONTINUE;
            END IF;
        END IF;

        v_before := cardinality(v_tokens);
        FOR v_wanted IN
            SELECT s.hook_id AS subject_id, s.token
              FROM unnest(v_suspect_ordinals, v_suspect_hooks, v_suspect_tokens)
                   WITH ORDINALITY AS s (ordinal, hook_id, token, place)
             WHERE s.ordinal = v_element.ordinal
             ORDER BY s.place
        LOOP
            SELECT o.run_id, o.hook_id, o.token = v_wanted.token AS is_taken INTO v_owner
              FROM (SELECT h.run_id, h.hook_id, h.token
                      FROM flow_active_hooks AS h
                     WHERE h.token = v_wanted.token
                       AND (h.run_id <> v_element.run_id OR h.hook_id <> v_wanted.subject_id)
                       AND NOT flow_append_settles(v_accepted || v_element, h.run_id, h.hook_id)
                    UNION ALL
                    SELECT h.run_id, h.hook_id, h.token
                      FROM flow_active_hooks AS h
                     WHERE h.run_id = v_element.run_id AND h.hook_id = v_wanted.subject_id
                       AND h.token <> v_wanted.token
                       AND NOT flow_append_settles(ARRAY[v_element], h.run_id, h.hook_id)
                    UNION ALL
                    SELECT b.run_id, b.hook_id, b.token
                      FROM unnest(v_runs, v_hooks, v_tokens) AS b (run_id, hook_id, token)
                     WHERE (b.token = v_wanted.token) <> (b.run_id = v_element.run_id
                                                          AND b.hook_id = v_wanted.subject_id)) AS o
             LIMIT 1;
            IF FOUND THEN
                p_verdicts[v_element.ordinal].outcome :=
                    CASE WHEN v_owner.is_taken THEN 'hook_token_conflict' ELSE 'invalid' END;
                p_verdicts[v_element.ordinal].detail := CASE WHEN v_owner.is_taken
                    THEN json_build_object('run_id', v_owner.run_id, 'hook_id', v_owner.hook_id,
                        'requested_hook_id', v_wanted.subject_id)
                    ELSE json_build_object('sqlstate', 'WF009', 'reason',
                        format('hook %s is active with another token', v_wanted.subject_id)) END;
                -- a refused element takes nothing
                v_runs := v_runs[:v_before];
                v_hooks := v_hooks[:v_before];
                v_tokens := v_tokens[:v_before];
                EXIT;
            END IF;
            v_runs := v_runs || v_element.run_id;
            v_hooks := v_hooks || v_wanted.subject_id;
            v_tokens := v_tokens || v_wanted.token;
        END LOOP;
        IF (p_verdicts[v_element.ordinal]).outcome = 'appended' THEN
            v_accepted := v_accepted || v_element;
        END IF;
    END LOOP;
    RETURN p_verdicts;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    FROM PUBLIC;
COMMENT ON FUNCTION flow_append_check_claims(flow_append_element[], flow_append_verdict[])
    IS 'Refuses the elements of a batch with a missing link or a hook token of another hook.';

-- sql/functions/append/flow_append_write.sql
-- flow_append_write: stores the events of the accepted elements of a batch.
-- Arguments: p_elements, p_bases (the head before the append, null for a refused element), p_at
--   (the time of all events). A deadline given as a duration is counted from p_at and written into
--   the payload as its last member; otherwise the payload is stored as it came.
-- Locks: rows; run and token locks are the caller's. SQLSTATEs: those of the trigger, none for
--   elements that were checked. Callers: internal.
CREATE FUNCTION flow_append_write(
    p_elements flow_append_element[], p_bases bigint[], p_at timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_event_log
        (run_id, sequence, event_count, event_id, event_type, subject_id, due_at, payload,
        recorded_at)
    SELECT e.run_id, e.base + v.event_position, v.event_count, v.event_id,
           v.event_type, v.subject_id,
           CASE WHEN v.due_in_us IS NULL THEN v.due_at
                ELSE flow_time_after(p_at, v.due_in_us) END,
           CASE WHEN v.due_in_us IS NULL THEN v.payload
                ELSE flow_append_due(v.payload, v.event_type, p_at, v.due_in_us) END,
           p_at
      FROM unnest(p_elements, p_bases) AS e (
               ordinal, run_id, expected, epoch, release, queue, event_count, creates, has_token,
               has_link, refusal, events, base)
     CROSS JOIN LATERAL unnest(e.events) AS v
     WHERE e.base IS NOT NULL;
END
$$;

-- A payload with its deadline. A function of its own so that an append without any need not get its
-- many parts ready.
CREATE FUNCTION flow_append_due(
    p_payload json, p_event_type text, p_at timestamptz, p_microseconds bigint
) RETURNS json
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN flow_json_with(p_payload, flow_due_member(p_event_type),
                          flow_time_text(flow_time_after(p_at, p_microseconds)));
END
$$;

-- Rows for runs about to be created, head 0 until then: to give them a queue of their own, or, in a
-- transaction that keeps one snapshot, to raise 40001 for a run that it cannot see.
CREATE FUNCTION flow_reserve_runs(p_run_ids text[], p_queues text[], p_at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_runs (run_id, workflow_name, workflow_version, queue, status, head_sequence,
        created_at, updated_at)
    SELECT i.run_id, '', '', i.queue, 'pending', 0, p_at, p_at
      FROM unnest(p_run_ids, p_queues) AS i (run_id, queue)
        ON CONFLICT (run_id) DO NOTHING;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_write(flow_append_element[], bigint[], timestamptz)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_append_due(json, text, timestamptz, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_reserve_runs(text[], text[], timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_write(flow_append_element[], bigint[], timestamptz)
    IS 'Stores the events of the accepted elements of a batch.';
COMMENT ON FUNCTION flow_append_due(json, text, timestamptz, bigint)
    IS 'A payload with its deadline as last member.';
COMMENT ON FUNCTION flow_reserve_runs(text[], text[], timestamptz)
    IS 'Rows for runs about to be created in a queue of their own.';

-- sql/functions/queue/flow_release.sql
-- flow_release: gives leases back and deletes their drive tasks, unless the runs were woken
-- meanwhile. Internal form of flow_release_run and of the release in an append.
-- Arguments: p_run_ids, p_epochs, p_wakes: three arrays, one entry a run: the epoch of the lease
--   and the wake count its holder has seen. A run that has ended is always released.
-- Returns one row a run: released, and the wake count as it is now (0 when the lease is not held).
-- Released is also the answer when this lease's task is gone already and nobody took another lease
-- since: so a release whose answer was lost can be repeated. Not released means that the run was
-- woken, and the lease stays, or that the lease is not held.
-- Locks: queue rows, by run; the run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_release(p_run_ids text[], p_epochs bigint[], p_wakes bigint[])
RETURNS TABLE (run_id text, released boolean, wakes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_gone text[];
BEGIN
    WITH gone AS (
        DELETE FROM flow_tasks AS t
              -- an array: as a join it is planned, while the table is small, to compare every
              -- task with every run
              WHERE t.task_id = ANY (ARRAY(
                    SELECT f.task_id
                      FROM (SELECT i.run_id, i.epoch, i.wakes
                              FROM unnest(p_run_ids, p_epochs, p_wakes)
                                   AS i (run_id, epoch, wakes)
                             ORDER BY i.run_id) AS g
                     CROSS JOIN LATERAL (
                            SELECT o.task_id, o.wakes
                              FROM flow_tasks AS o
                             WHERE o.run_id = g.run_id AND o.kind = 'drive_run'
                               AND o.epoch = g.epoch AND o.lease_expires_at IS NOT NULL
                             LIMIT 1) AS f
                     WHERE f.wakes = g.wakes OR flow_is_terminal(
                            (SELECT r.status FROM flow_runs AS r WHERE r.run_id = g.run_id))))
          RETURNING t.run_id
    )
    SELECT coalesce(array_agg(d.run_id), '{}') INTO v_gone FROM gone AS d;
    -- not plainly IS NOT NULL: the index of all blocked runs is not where to look these up
    UPDATE flow_runs AS r
       SET blocked_reason = NULL
     WHERE r.run_id = ANY (v_gone) AND (r.blocked_reason || '') IS NOT NULL
       AND r.dead_letter_id IS NULL;
    RETURN QUERY
    SELECT g.run_id,
           g.run_id = ANY (v_gone)
               OR (t.wakes IS NULL AND coalesce(r.lease_epoch = g.epoch, false)),
           coalesce(t.wakes, 0)
      FROM unnest(p_run_ids, p_epochs) AS g (run_id, epoch)
      LEFT JOIN LATERAL (
            SELECT f.wakes FROM flow_tasks AS f
             WHERE f.run_id = g.run_id AND f.kind = 'drive_run' AND f.epoch = g.epoch
             LIMIT 1) AS t ON true
      LEFT JOIN LATERAL (
            SELECT f.lease_epoch FROM flow_runs AS f
             WHERE f.run_id = g.run_id LIMIT 1) AS r ON true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release(text[], bigint[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_release(text[], bigint[], bigint[])
    IS 'Gives leases back and deletes their drive tasks, unless the runs were woken meanwhile.';

-- sql/functions/queue/flow_enqueue_drives.sql
-- flow_enqueue_drives: makes one open drive task of every run, or counts one more reason to look at
-- a run that has one already.
-- Arguments: p_run_ids; unknown runs are left out, and, unless p_force, runs whose drive task is a
--   dead letter. A task that nobody holds becomes available now; one that is leased stays with its
--   holder, who cannot release it without looking again.
-- Locks: queue rows, by run; the run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_enqueue_drives(p_run_ids text[], p_force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_runs text[];
    v_made text[];
    v_queues text[];
    v_woken text[];
    v_one record;
    v_queue text;
BEGIN
    IF cardinality(p_run_ids) = 1 THEN
        -- a run alone: to get the statements below ready costs more than the row does
        SELECT r.queue, r.runtime_build, r.workflow_name, r.priority, r.concurrency_key INTO v_one
          FROM flow_runs AS r
         WHERE r.run_id = p_run_ids[1] AND (r.dead_letter_id IS NULL OR p_force);
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE flow_tasks AS t
           SET wakes = t.wakes + 1,
               available_at = CASE WHEN t.lease_owner IS NULL THEN least(t.available_at, v_now)
                                   ELSE t.available_at END
         WHERE t.run_id = p_run_ids[1] AND t.kind = 'drive_run'
        RETURNING t.queue INTO v_queue;
        IF NOT FOUND THEN
            v_queue := v_one.queue;
            INSERT INTO flow_tasks (queue, run_id, available_at, enqueued_at, runtime_build,
                workflow_name, priority, concurrency_key)
            VALUES (v_queue, p_run_ids[1], v_now, v_now, coalesce(v_one.runtime_build, ''),
                v_one.workflow_name, v_one.priority, v_one.concurrency_key);
        END IF;
        PERFORM flow_notify_idle(ARRAY[v_queue]);
        RETURN;
    END IF;
    v_runs := ARRAY(SELECT DISTINCT i.run_id FROM unnest(p_run_ids) AS i (run_id)
                     ORDER BY i.run_id);
    -- two statements in place of ON CONFLICT, which makes a speculative row and a second WAL
    -- record of each new task; the run locks keep others from making one meanwhile
    WITH made AS (
        INSERT INTO flow_tasks AS t
            (queue, run_id, available_at, enqueued_at, runtime_build, workflow_name, priority,
             concurrency_key)
        SELECT r.queue, r.run_id, v_now, v_now, coalesce(r.runtime_build, ''), r.workflow_name,
               r.priority, r.concurrency_key
          FROM unnest(v_runs) AS g (run_id)
         CROSS JOIN LATERAL (
                SELECT f.queue, f.run_id, f.runtime_build, f.workflow_name, f.dead_letter_id,
                       f.priority, f.concurrency_key
                  FROM flow_runs AS f WHERE f.run_id = g.run_id LIMIT 1) AS r
          LEFT JOIN LATERAL (
                SELECT true AS is_there FROM flow_tasks AS f
                 WHERE f.run_id = g.run_id AND f.kind = 'drive_run' LIMIT 1) AS o ON true
         WHERE (r.dead_letter_id IS NULL OR p_force) AND o.is_there IS NULL
        RETURNING t.run_id, t.queue
    )
    SELECT array_agg(m.run_id), array_agg(DISTINCT m.queue) INTO v_made, v_queues FROM made AS m;
    IF coalesce(cardinality(v_made), 0) < cardinality(v_runs) THEN
        WITH woken AS (
            UPDATE flow_tasks AS t
               SET wakes = t.wakes + 1,
                   available_at = CASE WHEN t.lease_owner IS NULL
                                       THEN least(t.available_at, v_now)
                                       ELSE t.available_at END
             WHERE t.kind = 'drive_run'
               AND t.run_id = ANY (CASE WHEN v_made IS NULL THEN v_runs
                                        ELSE ARRAY(SELECT g.run_id FROM unnest(v_runs) AS g (run_id)
                                                   EXCEPT SELECT m.run_id
                                                            FROM unnest(v_made) AS m (run_id)) END)
               AND (p_force OR EXISTS (SELECT FROM flow_runs AS r
                                        WHERE r.run_id = t.run_id AND r.dead_letter_id IS NULL))
            RETURNING t.queue
        )
        SELECT array_agg(DISTINCT w.queue) INTO v_woken FROM woken AS w;
        v_queues := v_queues || v_woken;
    END IF;
    IF v_queues IS NOT NULL THEN
        PERFORM flow_notify_idle(v_queues);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_drives(text[], boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_drives(text[], boolean)
    IS 'Makes or wakes the drive tasks of runs.';

-- sql/functions/append/flow_append_many.sql
-- flow_append_many: appends events to many runs in one call; the form that workers use.
-- Arguments: p_batch, a JSON array of at most 1000 elements, one a run:
--   {"run_id": text, "expected": n or null, "epoch": n or null,
--    "events": [{"type", "subject"?, "due_at"? (RFC 3339), "due_in_us"? (microseconds from the
--                append), "payload": {...}, "event_id"? (uuid)}],
--    "steps"?: a bundle as flow_unbundle takes it, of step events that stand together, and
--    "before"?: how many of the events come before them, 0 by default;
--    "release"?: wake count seen by the lease's holder, "queue"?: text, for a run that is created}
--   expected null appends at the head; epoch is the fence; an empty events array only releases.
-- Returns one row an element, in order. outcome: appended, event_conflict, lease_lost,
--   run_terminal, run_not_found, hook_token_conflict, link_not_found, invalid (run_conflict is
--   reserved). A refused element changes nothing and does not touch the others. detail never holds
--   a token.
-- Locks, in order: retention guard (shared), run locks (also of linked runs), token locks, rows.
-- SQLSTATEs: WF010 when p_batch is not such an array. Callers: worker.
CREATE FUNCTION flow_append_many(p_batch json)
RETURNS TABLE (
    ordinal integer, run_id text, outcome text, head_sequence bigint, recorded_at timestamptz,
    released boolean, wakes bigint, detail json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_elements flow_append_element[] := flow_append_parse(p_batch);
    v_verdicts flow_append_verdict[];
    v_bases bigint[];
    v_at timestamptz;
    v_released text[];
    v_kept text[];
    v_kept_wakes bigint[];
    v_has_tokens boolean;
    v_has_links boolean;
    v_has_release boolean;
    v_reserves boolean;
    v_runs text[];
    v_linked text[];
BEGIN
    IF v_elements IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(e.run_id), bool_or(e.has_token), bool_or(e.has_link),
           bool_or(e.release IS NOT NULL),
           bool_or(e.creates AND (e.queue <> 'default' OR flow_is_repeatable()))
      INTO v_runs, v_has_tokens, v_has_links, v_has_release, v_reserves
      FROM unnest(v_elements) AS e;
    IF v_has_links THEN
        v_linked := ARRAY(
            SELECT v.linked_run_id
              FROM unnest(v_elements) AS e CROSS JOIN LATERAL unnest(e.events) AS v
             WHERE v.linked_run_id IS NOT NULL);
    END IF;
    PERFORM flow_lock_runs(v_runs || v_linked);
    IF v_has_tokens THEN
        PERFORM flow_lock_tokens(ARRAY(
            SELECT v.token
              FROM unnest(v_elements) AS e CROSS JOIN LATERAL unnest(e.events) AS v
             WHERE v.token IS NOT NULL));
    END IF;

    v_at := flow_now();
    v_verdicts := flow_append_check(v_elements);
    IF v_has_tokens OR v_has_links THEN
        v_verdicts := flow_append_check_claims(v_elements, v_verdicts);
    END IF;
    SELECT array_agg(CASE WHEN d.outcome = 'appended' THEN coalesce(d.base, 0) END)
      INTO v_bases
      FROM unnest(v_verdicts) AS d;
    IF v_reserves THEN
        -- usually the trigger makes the rows of new runs; see there for what needs them before that
        PERFORM flow_reserve_runs(array_agg(e.run_id), array_agg(e.queue), v_at)
           FROM unnest(v_elements) AS e
          WHERE e.creates AND v_bases[e.ordinal] IS NOT NULL
         HAVING count(*) > 0;
    END IF;
    PERFORM flow_append_write(v_elements, v_bases, v_at);

    IF v_has_release THEN
        SELECT array_agg(f.run_id) FILTER (WHERE f.released),
               array_agg(f.run_id) FILTER (WHERE NOT f.released),
               array_agg(f.wakes) FILTER (WHERE NOT f.released)
          INTO v_released, v_kept, v_kept_wakes
          FROM (SELECT array_agg(e.run_id) AS run_ids, array_agg(e.epoch) AS epochs,
                       array_agg(e.release) AS seen
                  FROM unnest(v_elements) AS e
                 WHERE e.release IS NOT NULL AND v_bases[e.ordinal] IS NOT NULL) AS a
         CROSS JOIN LATERAL flow_release(a.run_ids, a.epochs, a.seen) AS f;
    END IF;

    RETURN QUERY
    SELECT d.ordinal, d.run_id, d.outcome,
           CASE WHEN d.outcome = 'appended' THEN coalesce(d.base, 0) + d.event_count
                ELSE coalesce(d.base, 0) END,
           v_at,
           coalesce(v_has_release AND d.outcome = 'appended' AND d.run_id = ANY (v_released),
               false),
           coalesce(CASE WHEN v_has_release
                         THEN v_kept_wakes[array_position(v_kept, d.run_id)] END, 0),
           d.detail
      FROM unnest(v_elements, v_verdicts) AS d (
               ordinal, run_id, expected, epoch, release, queue, event_count, creates, has_token,
               has_link, refusal, events, outcome, base, is_terminal, detail);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_many(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_many(json) IS 'Appends events to many runs in one call.';

-- sql/functions/append/flow_append_batch.sql
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

-- sql/functions/append/flow_append_raise.sql
-- flow_append_raise: raises a refused append as an error.
-- Arguments: p_run_id; p_outcome and p_detail, as flow_append_many returned them.
-- Locks: none. SQLSTATEs: WF001, WF003, WF004, WF005, WF008, WF009, WF010, WF012, WF013.
-- Callers: internal.
CREATE FUNCTION flow_append_raise(p_run_id text, p_outcome text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    CASE p_outcome
        WHEN 'run_not_found' THEN
            PERFORM flow_raise_not_found(p_run_id);
        WHEN 'link_not_found' THEN
            PERFORM flow_raise_not_found(p_detail ->> 'flow_run_id');
        WHEN 'run_terminal' THEN
            PERFORM flow_raise_terminal(p_run_id, p_detail ->> 'status');
        WHEN 'event_conflict' THEN
            PERFORM flow_raise('WF003',
                format('run %s is at sequence %s, not at %s as expected', p_run_id,
                    p_detail ->> 'actual', p_detail ->> 'expected'),
                jsonb_build_object('run_id', p_run_id) || p_detail,
                'Read the run again and decide again.');
        WHEN 'lease_lost' THEN
            PERFORM flow_raise('WF008',
                format('run %s is driven by another lease: epoch %s is current, %s was given',
                    p_run_id, p_detail ->> 'current', p_detail ->> 'epoch'),
                jsonb_build_object('run_id', p_run_id) || p_detail,
                'Stop driving the run; whoever holds the lease goes on with it.');
        WHEN 'hook_token_conflict' THEN
            PERFORM flow_raise_token_conflict(p_run_id, p_detail ->> 'requested_hook_id',
                p_detail ->> 'run_id', p_detail ->> 'hook_id');
        ELSE
            CASE p_detail ->> 'sqlstate'
                WHEN 'WF010' THEN PERFORM flow_raise_argument('p_events', p_detail ->> 'reason');
                WHEN 'WF012' THEN PERFORM flow_raise_too_large(p_run_id,
                    p_detail ->> 'event_type', (p_detail ->> 'bytes')::integer);
                WHEN 'WF013' THEN PERFORM flow_raise_run_id(p_run_id);
                ELSE PERFORM flow_raise_transition(p_run_id, p_detail ->> 'reason');
            END CASE;
    END CASE;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append_raise(text, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION flow_append_raise(text, text, jsonb) IS 'Raises a refused append as an error.';

-- sql/functions/append/flow_append.sql
-- flow_append: appends events to one run; raises what flow_append_many would return as an outcome.
-- Arguments: p_run_id; p_expected, the head the caller knows, or null to append at the head;
--   p_events, the array of events as in flow_append_many; p_epoch, the fence, or null.
-- Returns the new head and the time of the events.
-- Locks: as flow_append_many. SQLSTATEs: WF001, WF003, WF004, WF005, WF008, WF009, WF010, WF012,
--   WF013. Callers: worker.
CREATE FUNCTION flow_append(
    p_run_id text, p_expected bigint, p_events json, p_epoch bigint DEFAULT NULL
) RETURNS TABLE (head_sequence bigint, recorded_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
BEGIN
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail INTO v_done
      FROM flow_append_many(json_build_array(json_build_object(
               'run_id', p_run_id, 'expected', p_expected, 'epoch', p_epoch,
               'events', p_events))) AS a;
    IF v_done.outcome <> 'appended' THEN
        PERFORM flow_append_raise(p_run_id, v_done.outcome, v_done.detail::jsonb);
    END IF;
    RETURN QUERY SELECT v_done.head_sequence, v_done.recorded_at;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_append(text, bigint, json, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_append(text, bigint, json, bigint) IS 'Appends events to one run.';

-- sql/types/flow_start_request.sql
-- flow_start_request: one run to be started.
-- refusal says why it cannot be started, as an object with sqlstate and reason, else null.
CREATE TYPE flow_start_request AS (
    ordinal integer,
    run_id text,
    spec json,
    input json,
    queue text,
    payload text,
    refusal json
);

COMMENT ON TYPE flow_start_request IS 'One run to be started.';

-- sql/functions/client/flow_open_run.sql
-- flow_open_run: locks a run and reads where it stands; the first step of every client verb.
-- Arguments: p_run_id; p_also, further runs to lock in the same sorted pass.
-- Returns status and head_sequence as they are under the lock.
-- Locks: retention guard (shared), run locks. SQLSTATEs: WF001, WF013. Callers: internal.
CREATE FUNCTION flow_open_run(
    p_run_id text, p_also text[], OUT status text, OUT head_sequence bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    PERFORM flow_lock_runs(p_run_id || p_also);
    SELECT r.status, r.head_sequence INTO status, head_sequence
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_open_run(text, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_open_run(text, text[]) IS 'Locks a run and reads where it stands.';

-- sql/functions/client/flow_write_event.sql
-- flow_write_event: appends one event at the head of a run and wakes the run.
-- Arguments: p_run_id; p_head, its head as read under the run lock; p_event_type; p_subject_id,
--   null for events of the run itself; p_payload, the event object without its type.
-- Returns the new head.
-- Locks: those of the trigger, then the queue row; the run lock is the caller's.
-- SQLSTATEs: WF012, and those of the trigger. Callers: internal.
CREATE FUNCTION flow_write_event(
    p_run_id text, p_head bigint, p_event_type text, p_subject_id text, p_payload text
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    INSERT INTO flow_event_log
        (run_id, sequence, event_type, subject_id, payload, recorded_at)
    VALUES (p_run_id, p_head + 1, p_event_type, p_subject_id, p_payload::json,
            flow_now());
    PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    RETURN p_head + 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_write_event(text, bigint, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_write_event(text, bigint, text, text, text)
    IS 'Appends one event at the head of a run and wakes the run.';

-- sql/functions/client/flow_redelivered.sql
-- flow_redelivered: what a verb does when its event is there already: wakes the run, in case the
-- drive of the first delivery was lost, unless the run has ended.
-- Arguments: p_run_id, p_status. Locks: the queue row; the run lock is the caller's.
-- SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_redelivered(p_run_id text, p_status text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT flow_is_terminal(p_status) THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_redelivered(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_redelivered(text, text) IS 'Wakes a run for a repeated verb.';

-- sql/functions/client/flow_start_read.sql
-- flow_start_read: takes a batch of runs to start apart, and checks each.
-- Arguments: p_runs, the array that flow_start_many takes; p_shielded, whether its text went
--   through
--   flow_json_shield. A missing run id is generated (UUID version 7).
-- Locks: none. SQLSTATEs: class 22 when a member has the wrong JSON type: the caller then reads the
--   elements one by one to find the one at fault. Callers: internal.
CREATE FUNCTION flow_start_read(p_runs json, p_shielded boolean) RETURNS flow_start_request[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_requests flow_start_request[];
    -- the runs of a batch are often of one workflow: its spec is looked into once
    v_first_spec text := CASE WHEN NOT p_shielded THEN (p_runs -> 0 -> 'spec')::text END;
    v_first_reason text := flow_spec_refusal(v_first_spec::json);
BEGIN
    SELECT array_agg(ROW(q.ordinal, q.run_id, q.spec, q.input, q.queue, p.payload,
               CASE
                   WHEN NOT flow_run_id_is_valid(q.run_id) THEN json_build_object(
                       'sqlstate', 'WF013',
                       'reason', 'a run id has 1 to 255 of A-Z a-z 0-9 . _ : @ + -')
                   WHEN p.reason IS NOT NULL THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_spec', 'reason', p.reason)
                   WHEN p.input_reason IS NOT NULL THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_input', 'reason', p.input_reason)
                   WHEN btrim(q.queue) = '' OR octet_length(q.queue) > 255 THEN json_build_object(
                       'sqlstate', 'WF010', 'argument', 'p_queue',
                       'reason', 'a queue name has 1 to 255 bytes and is not blank')
                   WHEN octet_length(p.payload) > 1048576 THEN json_build_object(
                       'sqlstate', 'WF012', 'reason', 'the spec and input are too large',
                       'event_type', 'run_created', 'bytes', octet_length(p.payload),
                       'max_bytes', 1048576)
               END)::flow_start_request ORDER BY q.ordinal)
      INTO v_requests
      FROM (
        SELECT r.ordinal,
               coalesce(flow_text_unshield(p_shielded, r.run_id), flow_uuid7()::text) AS run_id,
               CASE WHEN p_shielded THEN flow_json_unshield(r.spec::text)::json ELSE r.spec
               END AS spec,
               coalesce(CASE WHEN p_shielded THEN flow_json_unshield(i.input::text)::json
                             ELSE i.input END, 'null') AS input,
               coalesce(flow_text_unshield(p_shielded, r.queue), 'default') AS queue
          FROM ROWS FROM (
                   json_to_recordset(p_runs) AS (run_id text, spec json, input json, queue text),
                   json_array_elements(p_runs))
               WITH ORDINALITY AS r (run_id, spec, input, queue, element, ordinal)
         -- a record re-encodes strings; the element has the text as it came
         CROSS JOIN LATERAL (
                SELECT CASE json_typeof(r.input) WHEN 'string' THEN r.element -> 'input'
                            ELSE r.input END AS input OFFSET 0) AS i
        OFFSET 0
      ) AS q
     CROSS JOIN LATERAL (
        SELECT '{"spec":' || q.spec || ',"input":' || q.input || '}' AS payload,
               CASE WHEN q.spec::text = v_first_spec THEN v_first_reason
                    ELSE flow_spec_refusal(q.spec) END AS reason,
               flow_json_refusal(q.input) AS input_reason OFFSET 0) AS p;
    RETURN coalesce(v_requests, '{}');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_read(json, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_read(json, boolean) IS 'Takes a batch of runs to start apart.';

-- sql/functions/client/flow_start_runs.sql
-- flow_start_runs: starts the runs of checked requests; the one place where runs begin.
-- Arguments: p_requests. Returns one row a request, in order: outcome created, exists, run_conflict
--   or invalid; detail with reason (and sqlstate for invalid).
--   An id that is there already, in the table or earlier among the requests, exists when spec and
--   input say the same, and is a conflict otherwise. A run that has not ended is woken.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. SQLSTATEs: none.
-- Callers: internal.
CREATE FUNCTION flow_start_runs(p_requests flow_start_request[])
RETURNS TABLE (ordinal integer, run_id text, outcome text, head_sequence bigint, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz;
    v_outcomes text[];
    v_reasons text[];
    v_heads bigint[];
    v_woken text[];
    v_one flow_start_request := p_requests[1];
BEGIN
    PERFORM flow_lock_runs(ARRAY(
        SELECT q.run_id FROM unnest(p_requests) AS q WHERE q.refusal IS NULL));
    v_at := flow_now();
    IF cardinality(p_requests) = 1 AND v_one.refusal IS NULL AND v_one.queue = 'default'
       AND NOT flow_is_repeatable()
    THEN
        -- one run that is new: to get the statements below ready costs more than all rows of it
        PERFORM FROM flow_runs AS r WHERE r.run_id = v_one.run_id;
        IF NOT FOUND THEN
            INSERT INTO flow_event_log (run_id, sequence, event_type, payload, recorded_at)
            VALUES (v_one.run_id, 1, 'run_created', v_one.payload::json, v_at);
            PERFORM flow_enqueue_drives(ARRAY[v_one.run_id]);
            RETURN QUERY VALUES (v_one.ordinal, v_one.run_id, 'created', 1::bigint, NULL::json);
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(c.outcome ORDER BY c.ordinal), array_agg(c.reason ORDER BY c.ordinal),
           array_agg(c.head ORDER BY c.ordinal),
           array_agg(c.run_id) FILTER (WHERE c.outcome IN ('created', 'exists')
                                         AND NOT coalesce(flow_is_terminal(c.status), false))
      INTO v_outcomes, v_reasons, v_heads, v_woken
      FROM (
        SELECT s.ordinal, s.run_id, s.status, d.reason,
               CASE WHEN s.refusal IS NOT NULL THEN 0 ELSE coalesce(s.head, 1) END AS head,
               CASE WHEN s.refusal IS NOT NULL THEN 'invalid'
                    WHEN s.payload IS NULL THEN 'created'
                    WHEN d.reason IS NULL THEN 'exists'
                    ELSE 'run_conflict' END AS outcome
          FROM (
            SELECT q.ordinal, q.run_id, q.refusal, q.spec, q.input, q.payload AS wanted,
                   r.head, r.status,
                   coalesce(r.payload, CASE WHEN row_number() OVER same_id > 1
                       THEN first_value(q.payload::json) OVER same_id END) AS payload
              FROM (SELECT u.ordinal, u.run_id, u.refusal, u.spec, u.input, u.payload
                      FROM unnest(p_requests) AS u) AS q
              LEFT JOIN LATERAL (
                    SELECT f.head_sequence AS head, f.status, e.payload
                      FROM flow_runs AS f
                      JOIN flow_event_log AS e ON e.run_id = f.run_id AND e.sequence = 1
                     WHERE f.run_id = q.run_id AND f.head_sequence > 0
                     LIMIT 1) AS r ON q.refusal IS NULL
            WINDOW same_id AS (PARTITION BY q.run_id, q.refusal IS NULL ORDER BY q.ordinal)
          ) AS s
         CROSS JOIN LATERAL (SELECT CASE
                WHEN s.refusal IS NOT NULL OR s.payload IS NULL OR s.payload::text = s.wanted
                    THEN NULL
                WHEN NOT flow_json_equal(flow_json_get(s.payload, 'spec'), s.spec)
                    THEN 'workflow spec differs'
                WHEN NOT flow_json_equal(flow_json_get(s.payload, 'input'), s.input)
                    THEN 'workflow input differs'
            END AS reason) AS d
      ) AS c;
    IF v_outcomes IS NULL THEN
        RETURN;
    END IF;

    PERFORM flow_reserve_runs(array_agg(q.run_id), array_agg(q.queue), v_at)
       FROM unnest(p_requests) AS q
      WHERE v_outcomes[q.ordinal] = 'created'
        AND (q.queue <> 'default' OR flow_is_repeatable())
     HAVING count(*) > 0;
    INSERT INTO flow_event_log (run_id, sequence, event_type, payload, recorded_at)
    SELECT q.run_id, 1, 'run_created', q.payload::json, v_at
      FROM unnest(p_requests) AS q
     WHERE v_outcomes[q.ordinal] = 'created';
    IF v_woken IS NOT NULL THEN
        PERFORM flow_enqueue_drives(v_woken);
    END IF;

    RETURN QUERY
    SELECT q.ordinal, q.run_id, v_outcomes[q.ordinal], v_heads[q.ordinal],
           coalesce(q.refusal, CASE WHEN v_reasons[q.ordinal] IS NOT NULL
               THEN json_build_object('reason', v_reasons[q.ordinal]) END)
      FROM unnest(p_requests) AS q;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_runs(flow_start_request[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_runs(flow_start_request[]) IS 'Starts the runs of checked requests.';

-- sql/functions/client/flow_start_many.sql
-- flow_start_many: starts many runs in one call, each on its own merits.
-- Arguments: p_runs, a JSON array of at most 1000 of
--   {"run_id"?: text, "spec": {"name", "version", ...}, "input"?: any, "queue"?: text}
-- Returns one row an element, in order: run_id (generated when none was given), outcome created,
--   exists (the same run, not applied again), run_conflict or invalid, the head, and detail.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows.
-- SQLSTATEs: WF010 when p_runs is not such an array. Callers: client, worker.
CREATE FUNCTION flow_start_many(p_runs json)
RETURNS TABLE (ordinal integer, run_id text, outcome text, head_sequence bigint, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_shielded boolean := flow_json_is_hard(p_runs::text);
    v_runs json := p_runs;
    v_requests flow_start_request[];
    v_one flow_start_request[];
    v_element json;
    v_ordinal integer := 0;
BEGIN
    IF p_runs IS NULL OR json_typeof(p_runs) <> 'array' THEN
        PERFORM flow_raise_argument('p_runs', 'it must be a JSON array of runs to start');
    END IF;
    IF json_array_length(p_runs) > 1000 THEN
        PERFORM flow_raise_argument('p_runs', 'at most 1000 runs a call');
    END IF;
    IF v_shielded THEN
        v_runs := flow_json_shield(p_runs::text)::json;
    END IF;
    BEGIN
        v_requests := flow_start_read(v_runs, v_shielded);
    EXCEPTION WHEN data_exception THEN
        -- some element is malformed: find out which
        v_requests := '{}';
        FOR v_element IN SELECT a.element FROM json_array_elements(v_runs) AS a (element) LOOP
            v_ordinal := v_ordinal + 1;
            BEGIN
                v_one := flow_start_read(('[' || v_element::text || ']')::json, v_shielded);
                v_one[1].ordinal := v_ordinal;
            EXCEPTION WHEN data_exception THEN
                v_one := ARRAY[ROW(v_ordinal, flow_append_run_id(v_element, v_shielded), NULL, NULL,
                    'default', NULL, json_build_object('sqlstate', 'WF010', 'argument', 'p_runs',
                    'reason', 'the element is malformed: a member has the wrong type or form')
                    )::flow_start_request];
            END;
            v_requests := v_requests || v_one;
        END LOOP;
    END;
    RETURN QUERY
    SELECT s.ordinal, s.run_id, s.outcome, s.head_sequence, s.detail
      FROM flow_start_runs(v_requests) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start_many(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_start_many(json) IS 'Starts many runs in one call.';

-- sql/functions/client/flow_start.sql
-- flow_start: starts one run.
-- Arguments: p_spec, an object with name and version; p_input, any JSON, passed to the workflow;
--   p_run_id, or null for a generated one (UUID version 7); p_queue, whose workers drive the run.
-- Returns run_id, subject_id (null), applied and the head. The same id with the same spec and input
--   is not applied again, also when the run has ended.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF002 the id has another spec or input; WF010; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_start(
    p_spec json, p_input json DEFAULT 'null', p_run_id text DEFAULT NULL,
    p_queue text DEFAULT 'default'
) RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_done record;
    v_queue text := coalesce(p_queue, 'default');
    v_payload text := '{"spec":' || p_spec || ',"input":' || coalesce(p_input, 'null') || '}';
BEGIN
    IF octet_length(v_payload) <= 1048576 AND NOT flow_json_is_hard(v_payload)
       AND flow_run_id_is_valid(coalesce(p_run_id, 'a')) AND flow_spec_refusal(p_spec) IS NULL
       AND flow_json_refusal(p_input) IS NULL
       AND btrim(v_queue) <> '' AND octet_length(v_queue) <= 255
    THEN
        -- nothing is wrong with it, so there is no batch to be taken apart
        SELECT s.run_id, s.outcome, s.head_sequence, s.detail::jsonb AS detail INTO v_done
          FROM flow_start_runs(ARRAY[ROW(1, coalesce(p_run_id, flow_uuid7()::text), p_spec,
                   coalesce(p_input, 'null'), v_queue, v_payload, NULL)::flow_start_request]) AS s;
        IF v_done.outcome = 'created' THEN
            RETURN QUERY VALUES (v_done.run_id, NULL::text, true, v_done.head_sequence);
            RETURN;
        ELSIF v_done.outcome = 'run_conflict' THEN
            PERFORM flow_raise_conflict(v_done.run_id, v_done.detail ->> 'reason');
        END IF;
        RETURN QUERY VALUES (v_done.run_id, NULL::text, false, v_done.head_sequence);
        RETURN;
    END IF;
    -- the bulk form knows the words for what is wrong
    SELECT s.run_id, s.outcome, s.head_sequence, s.detail::jsonb AS detail INTO v_done
      FROM flow_start_many(json_build_array(json_build_object(
               'run_id', p_run_id, 'spec', p_spec, 'input', p_input, 'queue', p_queue))) AS s;
    IF v_done.outcome = 'run_conflict' THEN
        PERFORM flow_raise_conflict(v_done.run_id, v_done.detail ->> 'reason');
    ELSIF v_done.outcome = 'invalid' THEN
        CASE v_done.detail ->> 'sqlstate'
            WHEN 'WF012' THEN PERFORM flow_raise_too_large(v_done.run_id, 'run_created',
                (v_done.detail ->> 'bytes')::integer);
            WHEN 'WF013' THEN PERFORM flow_raise_run_id(v_done.run_id);
            ELSE PERFORM flow_raise_argument(
                v_done.detail ->> 'argument', v_done.detail ->> 'reason');
        END CASE;
    END IF;
    RETURN QUERY
    SELECT v_done.run_id, NULL::text, v_done.outcome = 'created', v_done.head_sequence;
END
$$;

CREATE FUNCTION flow_raise_conflict(p_run_id text, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF002', format('run %s conflicts: %s', p_run_id, p_reason),
        jsonb_build_object('run_id', p_run_id, 'reason', p_reason),
        'The id or the request is taken; use another id, or repeat the request unchanged.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_start(json, json, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_conflict(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_start(json, json, text, text) IS 'Starts one run.';
COMMENT ON FUNCTION flow_raise_conflict(text, text) IS 'Raises WF002.';

-- sql/functions/client/flow_resume_wait.sql
-- flow_resume_wait: completes a wait whose deadline has passed.
-- Arguments: p_run_id, p_wait_id.
-- Returns run_id, subject_id (the wait), applied and the head. A wait that was completed already,
--   or cancelled by its workflow, a cancellation request or the end of its run, is not applied
--   again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the wait is unknown and the run has ended; WF009 the wait is unknown, or
--   not due yet; WF010; WF013. Callers: client, worker.
CREATE FUNCTION flow_resume_wait(p_run_id text, p_wait_id text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_due timestamptz;
BEGIN
    IF p_wait_id IS NULL THEN
        PERFORM flow_raise_argument('p_wait_id', 'it is null');
    END IF;
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    SELECT w.due_at INTO v_due
      FROM scheduled_wakeups AS w
     WHERE w.run_id = p_run_id AND w.kind = 'wait' AND w.subject_id = p_wait_id;
    IF FOUND THEN
        IF v_due > flow_now() THEN
            PERFORM flow_raise_transition(p_run_id,
                format('wait %s is not due before %s', p_wait_id, flow_time_text(v_due)));
        END IF;
        v_head := flow_write_event(p_run_id, v_head, 'wait_completed', p_wait_id,
            format('{"wait_id":%s}', to_json(p_wait_id)));
        RETURN QUERY SELECT p_run_id, p_wait_id, true, v_head;
        RETURN;
    END IF;

    PERFORM FROM flow_event_log AS e
      WHERE e.run_id = p_run_id AND e.subject_id = p_wait_id AND e.event_type = 'wait_created';
    IF NOT FOUND THEN
        IF flow_is_terminal(v_status) THEN
            PERFORM flow_raise_terminal(p_run_id, v_status);
        END IF;
        PERFORM flow_raise_transition(p_run_id, format('wait %s does not exist', p_wait_id));
    END IF;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN QUERY SELECT p_run_id, p_wait_id, false, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_wait(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_wait(text, text) IS 'Completes a wait whose deadline has passed.';

-- sql/functions/client/flow_settle_hook.sql
-- flow_settle_hook: resumes or disposes a hook; what the four hook verbs share.
-- Arguments: p_run_id, p_hook_id; p_payload, what the hook receives, or null to dispose it;
--   p_token, the token the hook must still have, or null when it is addressed by run and id;
--   p_checked, the text of the schema that the payload was checked against, empty for none: an
--   active hook that has another schema is left as it is. Null not to ask.
-- Returns run_id, subject_id (the hook), applied, the head, and payload_schema: null, or the schema
--   to check against first, and then nothing was done.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF004, WF006, WF007, WF009, WF010, WF012, WF013. Callers: internal.
CREATE FUNCTION flow_settle_hook(
    p_run_id text, p_hook_id text, p_payload json, p_token text, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_last record;
    v_schema json;
    v_reason text := flow_json_refusal(p_payload);
BEGIN
    IF p_hook_id IS NULL THEN
        PERFORM flow_raise_argument('p_hook_id', 'it is null');
    ELSIF v_reason IS NOT NULL THEN
        PERFORM flow_raise_argument('p_payload', v_reason);
    END IF;
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    SELECT h.payload_schema INTO v_schema
      FROM flow_active_hooks AS h
     WHERE h.run_id = p_run_id AND h.hook_id = p_hook_id
       AND (p_token IS NULL OR h.token = p_token);
    IF FOUND THEN
        IF v_schema::text <> p_checked THEN
            RETURN QUERY SELECT p_run_id, p_hook_id, false, v_head, v_schema;
            RETURN;
        END IF;
        v_head := flow_write_event(p_run_id, v_head,
            CASE WHEN p_payload IS NULL THEN 'hook_disposed' ELSE 'hook_received' END, p_hook_id,
            '{"hook_id":' || to_json(p_hook_id)
                || coalesce(',"payload":' || p_payload::text, '') || '}');
        RETURN QUERY SELECT p_run_id, p_hook_id, true, v_head, NULL::json;
        RETURN;
    END IF;
    IF p_token IS NOT NULL THEN
        -- it was found by its token and settled before the run could be locked
        PERFORM flow_raise_token_not_found();
    END IF;

    SELECT e.event_type, e.payload INTO v_last
      FROM flow_event_log AS e
     WHERE e.run_id = p_run_id AND e.subject_id = p_hook_id
       AND e.event_type IN ('hook_created', 'hook_received', 'hook_disposed', 'hook_conflicted')
     ORDER BY e.sequence DESC
     LIMIT 1;
    IF v_last.event_type = 'hook_received' AND p_payload IS NOT NULL
        AND flow_json_equal(flow_json_get(v_last.payload, 'payload'), p_payload)
        OR v_last.event_type = 'hook_disposed' AND p_payload IS NULL
    THEN
        PERFORM flow_redelivered(p_run_id, v_status);
        RETURN QUERY SELECT p_run_id, p_hook_id, false, v_head, NULL::json;
        RETURN;
    END IF;
    v_reason := CASE
        WHEN v_last.event_type = 'hook_received' AND p_payload IS NOT NULL
            THEN 'it was answered with another payload'
        WHEN v_last.event_type = 'hook_received' THEN 'it was answered'
        WHEN v_last.event_type = 'hook_disposed' THEN 'it was disposed'
        WHEN v_last.event_type = 'hook_conflicted' THEN 'its token belonged to another hook'
        WHEN v_last.event_type = 'hook_created' AND NOT flow_is_terminal(v_status)
            THEN 'it was cancelled'
    END;
    IF v_reason IS NOT NULL THEN
        PERFORM flow_raise('WF007', format('hook %s of run %s: %s', p_hook_id, p_run_id, v_reason),
            jsonb_build_object('run_id', p_run_id, 'hook_id', p_hook_id, 'reason', v_reason),
            'The hook was settled in another way before; its outcome stands.');
    ELSIF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_run_id, v_status);
    END IF;
    PERFORM flow_raise_transition(p_run_id, format('hook %s does not exist', p_hook_id));
END
$$;

-- The run and hook that have a token, among the active ones.
CREATE FUNCTION flow_owner_of(p_token text, OUT run_id text, OUT hook_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT h.run_id, h.hook_id INTO run_id, hook_id
      FROM flow_active_hooks AS h WHERE h.token = p_token;
    IF NOT FOUND THEN
        PERFORM flow_raise_token_not_found();
    END IF;
END
$$;

CREATE FUNCTION flow_raise_token_not_found() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_raise('WF006', 'no active hook has this token', '{}',
        'It was never created, is settled, or its run has ended; use run id and hook id instead.');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_hook(text, text, json, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_owner_of(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_raise_token_not_found() FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_hook(text, text, json, text, text) IS 'Resumes or disposes a hook.';
COMMENT ON FUNCTION flow_owner_of(text) IS 'The run and hook that have a token.';
COMMENT ON FUNCTION flow_raise_token_not_found() IS 'Raises WF006.';

-- sql/functions/client/flow_resume_hook.sql
-- flow_resume_hook: answers a hook that is addressed by run and id.
-- Arguments: p_run_id, p_hook_id; p_payload, any JSON, handed to the workflow; p_checked, the text
--   of the schema that the payload was checked against, empty for none. Null not to ask: then
--   nothing is checked.
-- Returns run_id, subject_id (the hook), applied, the head, and payload_schema: null, or, if the
--   hook has another schema than p_checked, that one, and then nothing was done. The same payload
--   again is not applied again, also after the end of the run.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the run ended with the hook unanswered, or knows no such hook; WF007 the
--   hook was answered otherwise, disposed or cancelled; WF009 unknown hook; WF010; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_resume_hook(
    p_run_id text, p_hook_id text, p_payload json, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence, s.payload_schema
      FROM flow_settle_hook(p_run_id, p_hook_id, coalesce(p_payload, 'null'), NULL, p_checked) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_hook(text, text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_hook(text, text, json, text) IS 'Answers a hook.';

-- sql/functions/client/flow_resume_hook_by_token.sql
-- flow_resume_hook_by_token: answers the active hook that has a token.
-- Arguments: p_token, the bearer token; p_payload, any JSON, handed to the workflow; p_checked, see
--   flow_resume_hook.
-- Returns run_id, subject_id (the hook), applied, the head and payload_schema, see there. Of two
--   callers with one token one is applied; the other finds no active hook any more.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF006 no active hook has the token; WF010; WF012. Callers: client, worker.
CREATE FUNCTION flow_resume_hook_by_token(
    p_token text, p_payload json, p_checked text DEFAULT NULL
) RETURNS TABLE (
    run_id text, subject_id text, applied boolean, head_sequence bigint, payload_schema json
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_run_id text;
    v_hook_id text;
BEGIN
    SELECT o.run_id, o.hook_id INTO v_run_id, v_hook_id FROM flow_owner_of(p_token) AS o;
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence, s.payload_schema
      FROM flow_settle_hook(
        v_run_id, v_hook_id, coalesce(p_payload, 'null'), p_token, p_checked) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_hook_by_token(text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_hook_by_token(text, json, text)
    IS 'Answers the active hook that has a token.';

-- sql/functions/client/flow_dispose_hook.sql
-- flow_dispose_hook: withdraws a hook that is addressed by run and id.
-- Arguments: p_run_id, p_hook_id.
-- Returns run_id, subject_id (the hook), applied and the head. A disposed hook is not disposed
--   again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004 the run ended with the hook open, or knows no such hook; WF007 the hook
--   was answered or cancelled; WF009 unknown hook; WF010; WF013. Callers: client, worker.
CREATE FUNCTION flow_dispose_hook(p_run_id text, p_hook_id text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence
      FROM flow_settle_hook(p_run_id, p_hook_id, NULL, NULL) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dispose_hook(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dispose_hook(text, text) IS 'Withdraws a hook.';

-- sql/functions/client/flow_dispose_hook_by_token.sql
-- flow_dispose_hook_by_token: withdraws the active hook that has a token.
-- Arguments: p_token, the bearer token.
-- Returns run_id, subject_id (the hook), applied (always true) and the head.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF006 no active hook has the token. Callers: client, worker.
CREATE FUNCTION flow_dispose_hook_by_token(p_token text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_run_id text;
    v_hook_id text;
BEGIN
    SELECT o.run_id, o.hook_id INTO v_run_id, v_hook_id FROM flow_owner_of(p_token) AS o;
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.applied, s.head_sequence
      FROM flow_settle_hook(v_run_id, v_hook_id, NULL, p_token) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dispose_hook_by_token(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dispose_hook_by_token(text)
    IS 'Withdraws the active hook that has a token.';

-- sql/functions/client/flow_request_cancellation.sql
-- flow_request_cancellation: asks a run to clean up and end; its open waits, hooks and retries are
-- cancelled at once.
-- Arguments: p_run_id; p_reason, free text or null.
-- Returns run_id, subject_id (null), applied and the head. The same request again, or one for a run
--   that has ended, is not applied.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF002 it was requested with another reason; WF012; WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_request_cancellation(p_run_id text, p_reason text DEFAULT NULL)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_request json;
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    IF NOT flow_is_terminal(v_status) THEN
        SELECT flow_json_get(e.payload, 'request') INTO v_request
          FROM flow_event_log AS e
         WHERE e.run_id = p_run_id AND e.event_type = 'run_cancellation_requested'
           AND e.subject_id IS NULL
         LIMIT 1;
        IF NOT FOUND THEN
            v_head := flow_write_event(p_run_id, v_head, 'run_cancellation_requested', NULL,
                CASE WHEN p_reason IS NULL THEN '{"request":{}}'
                     ELSE format('{"request":{"reason":%s}}', to_json(p_reason)) END);
            RETURN QUERY SELECT p_run_id, NULL::text, true, v_head;
            RETURN;
        END IF;
        IF flow_json_get_text(v_request, 'reason') IS DISTINCT FROM p_reason THEN
            PERFORM flow_raise_conflict(p_run_id, 'cancellation was requested with another reason');
        END IF;
    END IF;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN QUERY SELECT p_run_id, NULL::text, false, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_request_cancellation(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_request_cancellation(text, text) IS 'Asks a run to clean up and end.';

-- sql/functions/client/flow_end_run.sql
-- flow_end_run: ends a run at once with a terminal event; what the three ending verbs share.
-- Arguments: p_run_id, p_event_type, p_payload. Returns run_id, subject_id (null), applied and the
--   head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF012, WF013. Callers: internal.
CREATE FUNCTION flow_end_run(p_run_id text, p_event_type text, p_payload text)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head FROM flow_open_run(p_run_id, '{}') AS o;
    IF flow_is_terminal(v_status) THEN
        RETURN QUERY SELECT p_run_id, NULL::text, false, v_head;
    ELSE
        v_head := flow_write_event(p_run_id, v_head, p_event_type, NULL, p_payload);
        RETURN QUERY SELECT p_run_id, NULL::text, true, v_head;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_end_run(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_end_run(text, text, text) IS 'Ends a run at once with a terminal event.';

-- sql/functions/client/flow_force_cancel.sql
-- flow_force_cancel: ends a run at once, without cleanup.
-- Arguments: p_run_id; p_reason, free text or null.
-- Returns run_id, subject_id (null), applied and the head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF012, WF013. Callers: client, worker.
CREATE FUNCTION flow_force_cancel(p_run_id text, p_reason text DEFAULT NULL)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT e.run_id, e.subject_id, e.applied, e.head_sequence
      FROM flow_end_run(p_run_id, 'run_cancelled',
               format('{"reason":%s}', coalesce(to_json(p_reason), 'null'))) AS e;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_force_cancel(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_force_cancel(text, text) IS 'Ends a run at once, without cleanup.';

-- sql/functions/client/flow_terminate_for_timeout.sql
-- flow_terminate_for_timeout: ends a run at once because its deadline passed.
-- Arguments: p_run_id; p_deadline, the deadline that passed; p_reason, free text or null.
-- Returns run_id, subject_id (null), applied and the head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF010, WF012, WF013. Callers: client, worker.
CREATE FUNCTION flow_terminate_for_timeout(
    p_run_id text, p_deadline timestamptz, p_reason text DEFAULT NULL
)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF p_deadline IS NULL
        OR p_deadline < '0001-01-01 00:00:00+00' OR p_deadline >= '10000-01-01 00:00:00+00'
    THEN
        PERFORM flow_raise_argument('p_deadline', 'it must be a time of the years 1 to 9999');
    END IF;
    RETURN QUERY
    SELECT e.run_id, e.subject_id, e.applied, e.head_sequence
      FROM flow_end_run(p_run_id, 'run_timed_out',
               format('{"deadline":"%s","reason":%s}', flow_time_text(p_deadline),
                   coalesce(to_json(p_reason), 'null'))) AS e;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_terminate_for_timeout(text, timestamptz, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminate_for_timeout(text, timestamptz, text)
    IS 'Ends a run at once because its deadline passed.';

-- sql/functions/client/flow_terminate_for_host_shutdown.sql
-- flow_terminate_for_host_shutdown: ends a run at once because its host will never resume it.
-- Arguments: p_run_id; p_reason, free text or null. Not for an ordinary stop of a worker.
-- Returns run_id, subject_id (null), applied and the head; a run that has ended stays as it is.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001, WF012, WF013. Callers: client, worker.
CREATE FUNCTION flow_terminate_for_host_shutdown(p_run_id text, p_reason text DEFAULT NULL)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT e.run_id, e.subject_id, e.applied, e.head_sequence
      FROM flow_end_run(p_run_id, 'run_host_shutdown',
               format('{"reason":%s}', coalesce(to_json(p_reason), 'null'))) AS e;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_terminate_for_host_shutdown(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_terminate_for_host_shutdown(text, text)
    IS 'Ends a run at once because its host will never resume it.';

-- sql/functions/client/flow_record_once.sql
-- flow_record_once: appends a record that has an id of its own, unless it is there; what
-- flow_record_progress and flow_link_child_operation share.
-- Arguments: p_run_id; p_also, further runs to lock and that must exist; p_event_type;
--   p_subject_id; p_member, the payload member that holds the record; p_value, the record.
-- Returns run_id, subject_id, applied and the head. The same value again is not applied again, also
--   after the end of the run.
-- Locks, in order: retention guard (shared), run locks, rows, queue row.
-- SQLSTATEs: WF001 (also for a run of p_also); WF004; WF011 the id holds another value; WF012;
--   WF013. Callers: internal.
CREATE FUNCTION flow_record_once(
    p_run_id text, p_also text, p_event_type text, p_subject_id text, p_member text, p_value json
) RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_status text;
    v_head bigint;
    v_stored json;
    v_what text := replace(p_member, 'child', 'child operation');
BEGIN
    SELECT o.status, o.head_sequence INTO v_status, v_head
      FROM flow_open_run(p_run_id, array_remove(ARRAY[p_also], NULL)) AS o;
    SELECT flow_json_get(e.payload, p_member) INTO v_stored
      FROM flow_event_log AS e
     WHERE e.run_id = p_run_id AND e.subject_id = p_subject_id AND e.event_type = p_event_type
       AND e.event_type IN ('run_progress_recorded', 'child_operation_linked')
     LIMIT 1;
    IF FOUND THEN
        IF NOT flow_json_equal(v_stored, p_value) THEN
            v_what := format('%s %s was recorded with another value', v_what, p_subject_id);
            PERFORM flow_raise('WF011', format('run %s: %s', p_run_id, v_what),
                jsonb_build_object('run_id', p_run_id, 'reason', v_what),
                'Give every record an id of its own and never change it.');
        END IF;
        PERFORM flow_redelivered(p_run_id, v_status);
        RETURN QUERY SELECT p_run_id, p_subject_id, false, v_head;
        RETURN;
    END IF;
    IF flow_is_terminal(v_status) THEN
        PERFORM flow_raise_terminal(p_run_id, v_status);
    END IF;
    IF p_also IS NOT NULL THEN
        PERFORM FROM flow_runs AS r WHERE r.run_id = p_also AND r.head_sequence > 0;
        IF NOT FOUND THEN
            PERFORM flow_raise_not_found(p_also);
        END IF;
    END IF;
    v_head := flow_write_event(p_run_id, v_head, p_event_type, p_subject_id,
        format('{"%s":%s}', p_member, p_value));
    RETURN QUERY SELECT p_run_id, p_subject_id, true, v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_record_once(text, text, text, text, text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_once(text, text, text, text, text, json)
    IS 'Appends a record that has an id of its own, unless it is there.';

-- sql/functions/client/flow_record_progress.sql
-- flow_record_progress: records a progress report of a run.
-- Arguments: p_run_id; p_progress, an object with progress_id (not blank), completed (a whole
--   number from 0), total (null, or at least 1 and not less than completed), message, details.
-- Returns run_id, subject_id (the progress id), applied and the head. The same report again is not
--   applied again.
-- Locks, in order: retention guard (shared), run lock, rows, queue row.
-- SQLSTATEs: WF001; WF004; WF009 the report is not valid; WF011 its id holds another report; WF012;
--   WF013. Callers: client, worker.
CREATE FUNCTION flow_record_progress(p_run_id text, p_progress json)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_progress_id json := flow_json_get(p_progress, 'progress_id');
    v_id text;
    v_completed text := flow_json_get(p_progress, 'completed')::text;
    v_total text := coalesce(flow_json_get(p_progress, 'total')::text, 'null');
    v_message text := json_typeof(flow_json_get(p_progress, 'message'));
BEGIN
    IF json_typeof(p_progress) IS DISTINCT FROM 'object'
        OR NOT flow_json_is_name(v_progress_id, 512)
    THEN
        PERFORM flow_raise_transition(p_run_id, 'a progress report needs a progress_id: a string, '
            'not blank, of at most 512 characters');
    END IF;
    v_id := v_progress_id #>> '{}';
    IF flow_json_refusal(p_progress) IS NOT NULL THEN
        PERFORM flow_raise_transition(p_run_id,
            format('progress %s cannot be read: %s', v_id, flow_json_refusal(p_progress)));
    -- 1.0, 1e3 and "1" are whole to some languages and not to others
    ELSIF v_completed IS NULL OR v_completed !~ '^-?[0-9]+$' OR v_total !~ '^(-?[0-9]+|null)$' THEN
        PERFORM flow_raise_transition(p_run_id, format('progress %s needs whole numbers, '
            'written without a fraction or exponent: completed, and total if there is one', v_id));
    ELSIF v_completed::numeric < 0 OR nullif(v_total, 'null')::numeric < 1
        OR v_completed::numeric > nullif(v_total, 'null')::numeric
    THEN
        PERFORM flow_raise_transition(p_run_id, format(
            'progress %s needs whole numbers: completed from 0 to total, total from 1', v_id));
    ELSIF v_message NOT IN ('string', 'null') THEN
        PERFORM flow_raise_transition(p_run_id,
            format('progress %s has a message that is not a string', v_id));
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.subject_id, r.applied, r.head_sequence
      FROM flow_record_once(p_run_id, NULL, 'run_progress_recorded', v_id, 'progress',
               p_progress) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_record_progress(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_progress(text, json) IS 'Records a progress report of a run.';

-- sql/functions/client/flow_link_child_operation.sql
-- flow_link_child_operation: records that a run is responsible for work somewhere else.
-- Arguments: p_run_id; p_child, an object with reference_id, kind and operation_id (not blank),
--   flow_run_id (null, or a run of this schema that exists), metadata.
-- Returns run_id, subject_id (the reference id), applied and the head. The same link again is not
--   applied again.
-- Locks, in order: retention guard (shared), both run locks, rows, queue row.
-- SQLSTATEs: WF001 the run, or the run it links, does not exist; WF004; WF009 the link is not
--   valid; WF011 its id holds another link; WF012; WF013. Callers: client, worker.
CREATE FUNCTION flow_link_child_operation(p_run_id text, p_child json)
RETURNS TABLE (run_id text, subject_id text, applied boolean, head_sequence bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_id json := flow_json_get(p_child, 'reference_id');
    v_kind json := flow_json_get(p_child, 'kind');
    v_operation json := flow_json_get(p_child, 'operation_id');
    v_linked json := flow_json_get(p_child, 'flow_run_id');
BEGIN
    IF json_typeof(p_child) IS DISTINCT FROM 'object'
        OR NOT flow_json_is_name(v_id, 512)
        OR NOT flow_json_is_name(v_kind, 512)
        OR NOT flow_json_is_name(v_operation, 512)
    THEN
        PERFORM flow_raise_transition(p_run_id, 'a child operation needs a reference_id, kind and '
            'operation_id: strings, not blank, of at most 512 characters');
    ELSIF json_typeof(v_linked) <> 'null' AND NOT flow_json_is_name(v_linked, 255) THEN
        PERFORM flow_raise_transition(p_run_id,
            'the flow_run_id of a child operation is not a run id');
    ELSIF flow_json_refusal(p_child) IS NOT NULL THEN
        PERFORM flow_raise_transition(p_run_id,
            format('a child operation cannot be read: %s', flow_json_refusal(p_child)));
    END IF;
    RETURN QUERY
    SELECT r.run_id, r.subject_id, r.applied, r.head_sequence
      FROM flow_record_once(p_run_id, v_linked #>> '{}', 'child_operation_linked',
               v_id #>> '{}', 'child', p_child) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_link_child_operation(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_link_child_operation(text, json)
    IS 'Records that a run is responsible for work somewhere else.';

-- sql/functions/steps/flow_step_tip.sql
-- flow_step_tip: the newest event of one step, and whether a cancellation request came after it.
-- Arguments: p_run_id, p_step_id. No row when the step was never created.
-- A step that is at work began a short while ago, so the search from the end of the stream is over
-- soon, however long the history is.
-- Locks: none; who decides by the answer holds the run lock. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_step_tip(p_run_id text, p_step_id text)
RETURNS TABLE (
    event_type text, attempt integer, sequence bigint, recorded_at timestamptz, is_cancelled boolean
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tip record;
BEGIN
    SELECT e.event_type, e.sequence, l.recorded_at,
           CASE WHEN e.event_type = 'step_started'
                -- whatever stands there: no attempt that anybody names is more than this
                THEN CASE WHEN a.number ~ '^[0-9]+$' AND length(a.number) < 10
                          THEN a.number::integer END
           END AS attempt
      INTO v_tip
      FROM flow_event_log AS l
     CROSS JOIN LATERAL (
            SELECT l.event_type, l.sequence, l.payload
             WHERE l.event_type LIKE 'step\_%' AND l.subject_id = p_step_id
            UNION ALL
            (SELECT u.event_type, u.sequence, u.payload
               FROM flow_unbundle(l.payload, l.sequence, l.event_count) AS u
              WHERE l.event_type IS NULL AND u.subject_id = p_step_id
              ORDER BY u.sequence DESC
              LIMIT 1)) AS e
     CROSS JOIN LATERAL (
            SELECT CASE WHEN e.event_type = 'step_started'
                        THEN flow_json_get(e.payload, 'attempt')::text END AS number) AS a
     WHERE l.run_id = p_run_id
     ORDER BY l.sequence DESC
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT v_tip.event_type, v_tip.attempt, v_tip.sequence, v_tip.recorded_at,
           EXISTS (SELECT FROM flow_event_log AS c
                    WHERE c.run_id = p_run_id AND c.sequence > v_tip.sequence
                      AND c.event_type = 'run_cancellation_requested');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_step_tip(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_step_tip(text, text) IS 'The newest event of one step.';

-- sql/functions/steps/flow_complete_step.sql
-- flow_complete_step: records that an attempt has returned, in the transaction in which the step
-- did its work, so that both take effect or neither does.
-- Arguments: p_run_id; p_epoch, the fence; p_step_id; p_attempt, the attempt that returned;
--   p_payload, the payload of step_completed; p_is_deferrable, whether the transaction in which the
--   step began is the only deferrable one: in another it has ended.
-- Returns one row. outcome: appended; lease_lost, run_terminal, run_not_found, invalid as of
--   flow_append_many; superseded, when this attempt is not waited for, or not any more;
--   transaction_ended, when this is not the transaction in which the step began.
--   Unless it is appended the caller rolls its transaction back. The head moves whatever the driver
--   of the run knows of it: its next append is then refused once, and it reads what came.
-- Locks: as flow_append_many, until the end of the transaction: call it last.
-- SQLSTATEs: those of flow_append_many. Callers: worker.
CREATE FUNCTION flow_complete_step(
    p_run_id text, p_epoch bigint, p_step_id text, p_attempt integer, p_payload json,
    p_is_deferrable boolean DEFAULT false
) RETURNS TABLE (outcome text, head_sequence bigint, recorded_at timestamptz, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_tip record;
    v_status text;
    v_epoch bigint;
BEGIN
    IF p_is_deferrable AND current_setting('transaction_deferrable') <> 'on' THEN
        RETURN QUERY SELECT 'transaction_ended', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT r.status, r.lease_epoch INTO v_status, v_epoch
      FROM flow_runs AS r
     WHERE r.run_id = p_run_id;
    -- whoever lost its lease hears that, and not what others made of the step meanwhile
    IF v_epoch = p_epoch AND NOT flow_is_terminal(v_status) THEN
        SELECT t.event_type, t.attempt, t.is_cancelled INTO v_tip
          FROM flow_step_tip(p_run_id, p_step_id) AS t;
        IF v_tip.event_type IS DISTINCT FROM 'step_started' OR v_tip.is_cancelled
           OR v_tip.attempt IS DISTINCT FROM p_attempt
        THEN
            RETURN QUERY SELECT 'superseded', 0::bigint, flow_now(), NULL::json;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail
      FROM flow_append_many((
               '[{"run_id":' || to_json(p_run_id)::text || ',"epoch":' || p_epoch::text ||
               ',"events":[{"type":"step_completed","subject":' || to_json(p_step_id)::text ||
               ',"payload":' || p_payload::text || '}]}]')::json) AS a;
END
$$;

-- Whether an attempt that was completed so, whose answer was lost, took effect. Waits until the
-- transaction in doubt has ended: it holds the run lock. True also when another worker completed
-- the step.
CREATE FUNCTION flow_step_completed(p_run_id text, p_step_id text)
RETURNS TABLE (is_completed boolean, sequence bigint, recorded_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    RETURN QUERY
    SELECT t.event_type = 'step_completed', t.sequence, t.recorded_at
      FROM flow_step_tip(p_run_id, p_step_id) AS t;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_complete_step(text, bigint, text, integer, json, boolean)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_step_completed(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_complete_step(text, bigint, text, integer, json, boolean)
    IS 'Records that an attempt has returned, in the transaction of its work.';
COMMENT ON FUNCTION flow_step_completed(text, text)
    IS 'Whether a step is completed, once nobody is about to complete it.';

-- sql/functions/steps/flow_record_heartbeats.sql
-- flow_record_heartbeats: keeps what steps at work say of their progress, all those of a process in
-- one call, for the attempt that follows if this one comes to nothing.
-- Arguments: p_beats, a JSON array of {"run_id", "epoch", "step_id", "attempt", "details"?,
--   "task_id"?}: the fence is that of the task if there is one, else that of the run;
--   details is JSON text; without it the step has its outcome, and its row goes.
-- Returns one row a beat, in order. outcome: recorded; busy, when somebody works on the run right
--   now: say it again; lost, when the lease is another's or the run has ended.
-- Locks, in order: run locks, only when free, for it never waits for a run; rows of this table.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_record_heartbeats(p_beats json)
RETURNS TABLE (run_id text, step_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_tasks bigint[];
    v_steps text[];
    v_attempts integer[];
    v_details text[];
    v_outcomes text[];
    v_free text[];
BEGIN
    BEGIN
        SELECT array_agg(b.run_id), array_agg(b.epoch), array_agg(b.task_id),
               array_agg(b.step_id), array_agg(b.attempt), array_agg(b.details::json::text)
          INTO v_runs, v_epochs, v_tasks, v_steps, v_attempts, v_details
          FROM json_to_recordset(p_beats) AS b (
                   run_id text, epoch bigint, step_id text, attempt integer, details text,
                   task_id bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_beats',
            'it must be an array of {"run_id", "epoch", "step_id", "attempt", "details"}');
    END;
    v_free := flow_try_lock_runs(ARRAY(SELECT DISTINCT u.run_id FROM unnest(v_runs) AS u (run_id)));
    SELECT array_agg(CASE WHEN b.run_id <> ALL (v_free) THEN 'busy'
                          WHEN coalesce(t.epoch, r.lease_epoch) IS DISTINCT FROM b.epoch THEN 'lost'
                          WHEN b.task_id IS NOT NULL AND t.epoch IS NULL THEN 'lost'
                          WHEN b.details IS NOT NULL AND flow_is_terminal(r.status) THEN 'lost'
                          ELSE 'recorded' END ORDER BY b.n)
      INTO v_outcomes
      FROM unnest(v_runs, v_epochs, v_tasks, v_details) WITH ORDINALITY
           AS b (run_id, epoch, task_id, details, n)
      LEFT JOIN LATERAL (
            SELECT f.lease_epoch, f.status FROM flow_runs AS f
             WHERE f.run_id = b.run_id LIMIT 1) AS r ON true
      LEFT JOIN LATERAL (
            SELECT k.epoch FROM flow_tasks AS k
             WHERE k.task_id = b.task_id AND k.lease_expires_at IS NOT NULL LIMIT 1) AS t ON true;
    DELETE FROM flow_step_heartbeats AS h
          USING unnest(v_runs, v_steps, v_details, v_outcomes)
                AS b (run_id, step_id, details, outcome)
          WHERE h.run_id = b.run_id AND h.step_id = b.step_id
            AND b.details IS NULL AND b.outcome = 'recorded';
    INSERT INTO flow_step_heartbeats AS h (run_id, step_id, attempt, beat_at, details)
    SELECT DISTINCT ON (b.run_id, b.step_id)
           b.run_id, b.step_id, b.attempt, flow_now(), b.details::json
      FROM unnest(v_runs, v_steps, v_attempts, v_details, v_outcomes) WITH ORDINALITY
           AS b (run_id, step_id, attempt, details, outcome, n)
     WHERE b.details IS NOT NULL AND b.outcome = 'recorded'
     ORDER BY b.run_id, b.step_id, b.n DESC
        ON CONFLICT (run_id, step_id) DO UPDATE
       SET attempt = excluded.attempt, beat_at = excluded.beat_at, details = excluded.details;
    RETURN QUERY
    SELECT b.run_id, b.step_id, b.outcome
      FROM unnest(v_runs, v_steps, v_outcomes) WITH ORDINALITY AS b (run_id, step_id, outcome, n)
     ORDER BY b.n;
END
$$;

-- What the latest heartbeat of a step said, no row if there was none.
CREATE FUNCTION flow_step_heartbeat(p_run_id text, p_step_id text)
RETURNS TABLE (attempt integer, beat_at timestamptz, details json)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
    SELECT h.attempt, h.beat_at, h.details
      FROM flow_step_heartbeats AS h
     WHERE h.run_id = p_run_id AND h.step_id = p_step_id
$$;

REVOKE EXECUTE ON FUNCTION flow_record_heartbeats(json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_step_heartbeat(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_record_heartbeats(json) IS 'Keeps what steps at work say.';
COMMENT ON FUNCTION flow_step_heartbeat(text, text) IS 'What the latest heartbeat of a step said.';

-- sql/types/flow_step_task.sql
-- flow_step_task: one attempt of a step that is left to the workers of another queue, and when its
-- run is to be woken: the earlier of a time counted from the append and a fixed one.
CREATE TYPE flow_step_task AS (
    step_id text COLLATE "C",
    step_name text COLLATE "C",
    attempt integer,
    queue text COLLATE "C",
    due_in_us bigint,
    due_at timestamptz
);

COMMENT ON TYPE flow_step_task IS 'One attempt of a step that is left to another queue.';

-- sql/functions/steps/flow_read_step_tasks.sql
-- flow_read_step_tasks: the attempts of steps that an array names.
-- Arguments: p_steps, as flow_route_steps takes it. Checked here, because the constraints of the
-- tables would show the row.
-- Locks: none. SQLSTATEs: WF010. Callers: internal.
CREATE FUNCTION flow_read_step_tasks(p_steps json) RETURNS flow_step_task[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_steps flow_step_task[];
    v_are_whole boolean;
BEGIN
    BEGIN
        SELECT array_agg(ROW(s.step_id, s.step_name, s.attempt, s.queue, s.due_in_us,
                   flow_deadline(s.due_at))::flow_step_task),
               bool_and((octet_length(s.step_id) BETWEEN 1 AND 2048
                         AND octet_length(s.step_name) BETWEEN 1 AND 2048
                         AND s.attempt > 0 AND octet_length(s.queue) BETWEEN 1 AND 255
                         AND btrim(s.queue) <> ''
                         AND coalesce(abs(s.due_in_us / 1000), 0) <= 250000000000000) IS TRUE)
          INTO v_steps, v_are_whole
          FROM json_to_recordset(p_steps)
               AS s (step_id text, step_name text, attempt integer, queue text,
                     due_in_us bigint, due_at text);
    EXCEPTION WHEN data_exception THEN
        v_are_whole := false;
    END;
    IF NOT v_are_whole THEN
        PERFORM flow_raise_argument('p_steps', 'it must be an array of {"step_id", "step_name", '
            '"attempt", "queue", "due_in_us"?, "due_at"?}, none left out, blank, or too long');
    END IF;
    RETURN v_steps;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_read_step_tasks(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_read_step_tasks(json)
    IS 'The attempts that an array of them names.';

-- sql/functions/steps/flow_route_steps.sql
-- flow_route_steps: an append of the driver of a run, with the attempts that it leaves to workers
-- of other queues: their tasks are made in the transaction of their step_started, or not at all.
-- Arguments: p_append, an array of one element as flow_append_many takes it; p_run_id, its run;
--   p_steps, a JSON array of {"step_id", "step_name", "attempt", "queue", "due_in_us"?, "due_at"?}:
--   the deadline at which the run is woken, the earlier of a time counted from this append and an
--   RFC 3339 one.
-- Returns what flow_append_batch returns. A refused append makes no tasks.
--   A task is of kind run_step, has the priority and the build of its run, and can only be claimed
--   by who knows the step: workflow_name holds 'step:' and its name. Until the attempt has an
--   outcome the run is suspended, and a row of scheduled_wakeups says so.
-- Locks: as flow_append_many, then rows of queues with a hint. SQLSTATEs: those of
-- flow_append_many; WF010. Callers: worker.
CREATE FUNCTION flow_route_steps(p_append json, p_run_id text, p_steps json)
RETURNS TABLE (recorded_at timestamptz, marks text, heads text, exceptions text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_steps flow_step_task[] := flow_read_step_tasks(p_steps);
    v_done record;
BEGIN
    SELECT a.recorded_at, a.marks, a.heads, a.exceptions,
           coalesce((a.exceptions::json -> 0 ->> 1) = 'appended', true) AS is_appended
      INTO v_done FROM flow_append_batch(p_append) AS a;
    IF v_done.is_appended THEN
        PERFORM flow_make_step_tasks(p_run_id, v_steps, v_done.recorded_at);
    END IF;
    RETURN QUERY SELECT v_done.recorded_at, v_done.marks, v_done.heads, v_done.exceptions;
END
$$;

-- The same for attempts that were begun before, where a task is missing: in a history that was
-- imported, say. One that has a task, or a dead letter, or an outcome, is left alone.
-- Locks: as flow_lock_runs. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_ensure_step_tasks(p_run_id text, p_steps json) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_steps flow_step_task[] := flow_read_step_tasks(p_steps);
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT array_agg(s) INTO v_steps
      FROM unnest(v_steps) AS s
     WHERE NOT EXISTS (
            SELECT FROM flow_tasks AS t
             WHERE t.run_id = p_run_id AND t.kind = 'run_step'
               AND t.payload ->> 'step_id' = s.step_id
               AND t.payload ->> 'attempt' = s.attempt::text)
       AND NOT EXISTS (
            SELECT FROM flow_dead_letters AS d
             WHERE d.run_id = p_run_id AND d.kind = 'run_step'
               AND d.payload ->> 'step_id' = s.step_id
               AND d.payload ->> 'attempt' = s.attempt::text)
       AND EXISTS (
            SELECT FROM flow_step_tip(p_run_id, s.step_id) AS t
             WHERE t.event_type = 'step_started' AND t.attempt = s.attempt);
    IF v_steps IS NOT NULL THEN
        PERFORM flow_make_step_tasks(p_run_id, v_steps, flow_now());
    END IF;
END
$$;

CREATE FUNCTION flow_make_step_tasks(
    p_run_id text, p_steps flow_step_task[], p_at timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_queues text[];
BEGIN
    IF p_steps IS NULL OR NOT EXISTS (SELECT FROM flow_runs AS r WHERE r.run_id = p_run_id) THEN
        RETURN;
    END IF;
    WITH made AS (
        INSERT INTO flow_tasks (queue, run_id, kind, payload, priority, available_at,
            enqueued_at, runtime_build, workflow_name, max_attempts, retry_delay)
        SELECT s.queue, p_run_id, 'run_step',
               json_build_object('step_id', s.step_id, 'attempt', s.attempt,
                                 'step_name', s.step_name),
               r.priority, p_at, p_at, coalesce(r.runtime_build, ''), 'step:' || s.step_name,
               20, interval '1 second'
          FROM unnest(p_steps) AS s
         CROSS JOIN LATERAL (
                SELECT f.runtime_build, f.priority FROM flow_runs AS f
                 WHERE f.run_id = p_run_id LIMIT 1) AS r
        RETURNING queue
    )
    SELECT array_agg(DISTINCT m.queue) INTO v_queues FROM made AS m;
    INSERT INTO scheduled_wakeups AS w (run_id, kind, subject_id, due_at)
    SELECT DISTINCT ON (s.step_id) p_run_id, 'step_deadline', s.step_id,
           coalesce(least(flow_time_after(p_at, s.due_in_us), s.due_at), 'infinity')
      FROM unnest(p_steps) AS s
     ORDER BY s.step_id
        ON CONFLICT (run_id, kind, subject_id) DO UPDATE
       SET due_at = excluded.due_at, dispatched_at = NULL;
    PERFORM flow_lower_mark('', (
        SELECT min(w.due_at) FROM scheduled_wakeups AS w
         WHERE w.run_id = p_run_id AND w.kind = 'step_deadline'));
    UPDATE flow_runs AS r SET status = 'suspended'
     WHERE r.run_id = p_run_id AND r.status = 'running';
    PERFORM flow_notify_idle(v_queues);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_route_steps(json, text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_ensure_step_tasks(text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_make_step_tasks(text, flow_step_task[], timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_ensure_step_tasks(text, json)
    IS 'Makes the tasks of begun attempts that have none.';
COMMENT ON FUNCTION flow_make_step_tasks(text, flow_step_task[], timestamptz)
    IS 'Makes the tasks of attempts that workers of other queues carry out.';
COMMENT ON FUNCTION flow_route_steps(json, text, json)
    IS 'Appends, and makes the tasks of attempts that workers of other queues carry out.';

-- sql/functions/steps/flow_settle_step.sql
-- flow_settle_step: records how an attempt ended that a worker of another queue carried out,
-- removes its task and wakes its run, all in one transaction.
-- Arguments: p_run_id; p_task_id and p_epoch, the task and its fence; p_step_id; p_attempt;
--   p_event, one event of flow_append_many: step_completed, step_retrying, step_failed or
--   step_non_retryable. What else follows from it is the driver's. p_is_deferrable as of
--   flow_complete_step.
-- Returns one row. outcome: appended; lease_lost, when the task is somebody else's by now, or done;
--   transaction_ended as of flow_complete_step; superseded, when nobody waits for this attempt any
--   more; run_terminal, run_not_found, invalid as of flow_append_many. Unless it is appended
--   nothing was changed.
-- Locks, in order: as flow_append_many; the queue rows of the task and of the run.
-- SQLSTATEs: those of flow_append_many. Callers: worker.
CREATE FUNCTION flow_settle_step(
    p_run_id text, p_task_id bigint, p_epoch bigint, p_step_id text, p_attempt integer,
    p_event json, p_is_deferrable boolean DEFAULT false
) RETURNS TABLE (outcome text, head_sequence bigint, recorded_at timestamptz, detail json)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tip record;
    v_done record;
BEGIN
    IF p_is_deferrable AND current_setting('transaction_deferrable') <> 'on' THEN
        RETURN QUERY SELECT 'transaction_ended', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id = p_task_id AND t.kind = 'run_step' AND t.run_id = p_run_id
        AND t.epoch = p_epoch AND t.lease_expires_at IS NOT NULL
        FOR UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lease_lost', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    SELECT t.event_type, t.attempt INTO v_tip FROM flow_step_tip(p_run_id, p_step_id) AS t;
    IF v_tip.event_type IS DISTINCT FROM 'step_started' OR v_tip.attempt IS DISTINCT FROM p_attempt
    THEN
        RETURN QUERY SELECT 'superseded', 0::bigint, flow_now(), NULL::json;
        RETURN;
    END IF;
    SELECT a.outcome, a.head_sequence, a.recorded_at, a.detail INTO v_done
      FROM flow_append_many((
               '[{"run_id":' || to_json(p_run_id)::text || ',"events":[' || p_event::text ||
               ']}]')::json) AS a;
    IF v_done.outcome = 'appended' THEN
        DELETE FROM flow_tasks AS t WHERE t.task_id = p_task_id;
        SELECT t.event_type INTO v_tip FROM flow_step_tip(p_run_id, p_step_id) AS t;
        IF v_tip.event_type <> 'step_retrying' THEN
            DELETE FROM flow_step_heartbeats AS h
                  WHERE h.run_id = p_run_id AND h.step_id = p_step_id;
        END IF;
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
    RETURN QUERY SELECT v_done.outcome, v_done.head_sequence, v_done.recorded_at, v_done.detail;
END
$$;

-- Which attempts that are at work nobody waits for any more: p_steps is a JSON array of {"task_id",
-- "run_id", "step_id", "attempt"}; one row each for those whose step was closed, or whose run has
-- ended. SQLSTATEs: WF010.
CREATE FUNCTION flow_superseded_steps(p_steps json) RETURNS TABLE (task_id bigint)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_runs text[];
    v_steps text[];
    v_attempts integer[];
BEGIN
    BEGIN
        SELECT array_agg(s.task_id), array_agg(s.run_id), array_agg(s.step_id),
               array_agg(s.attempt)
          INTO v_tasks, v_runs, v_steps, v_attempts
          FROM json_to_recordset(p_steps)
               AS s (task_id bigint, run_id text, step_id text, attempt integer);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_steps',
            'it must be an array of {"task_id", "run_id", "step_id", "attempt"}');
    END;
    RETURN QUERY
    SELECT s.task_id
      FROM unnest(v_tasks, v_runs, v_steps, v_attempts) AS s (task_id, run_id, step_id, attempt)
      LEFT JOIN LATERAL (
            SELECT f.status FROM flow_runs AS f WHERE f.run_id = s.run_id LIMIT 1) AS r ON true
      LEFT JOIN LATERAL flow_step_tip(s.run_id, s.step_id) AS t ON true
     WHERE r.status IS NULL OR flow_is_terminal(r.status)
        OR t.event_type IS DISTINCT FROM 'step_started' OR t.attempt IS DISTINCT FROM s.attempt;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_step(text, bigint, bigint, text, integer, json, boolean)
    FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_superseded_steps(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_step(text, bigint, bigint, text, integer, json, boolean)
    IS 'Records how an attempt ended that a worker of another queue carried out.';
COMMENT ON FUNCTION flow_superseded_steps(json)
    IS 'Which attempts at work nobody waits for any more.';

-- sql/functions/steps/flow_expire_steps.sql
-- flow_expire_steps: fails attempts in other queues whose deadline has passed, where no worker
-- has them.
-- Arguments: p_run_id; p_steps, a JSON array of {"step_id", "attempt", "not_begun"?, "not_closed"?,
--   "closes_at"?}: not_begun is the event (as of flow_append_many, step_non_retryable say) if the
--   time has passed within which a worker should have taken it, not_closed if that has in which the
--   step should have ended; closes_at (RFC 3339), when the latter does.
-- Returns one row a step. outcome: expired, its event is appended and its task gone; at_work, a
--   worker has it; taken, a worker had it in time; superseded, it has its outcome already; or why
--   the append was refused, as of flow_append_many. Where a deadline is left, the run is woken at
--   that: at closes_at, or when the lease of the worker would end that still has it then.
-- Whether the deadline has passed is the caller's to know. Between a claim of the task and this,
-- the row of the task decides: whoever locks it first.
-- Locks, in order: run lock; queue rows of the tasks, waiting for a claim at work; as
-- flow_append_many; the queue row of the run. SQLSTATEs: those of flow_append_many;
-- WF010. Callers: worker.
CREATE FUNCTION flow_expire_steps(p_run_id text, p_steps json)
RETURNS TABLE (step_id text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_step record;
    v_task record;
    v_tip record;
    v_event json;
    v_due timestamptz;
    v_expired boolean := false;
BEGIN
    BEGIN
        PERFORM flow_deadline(s.closes_at)
           FROM json_to_recordset(p_steps)
                AS s (step_id text, attempt integer, not_begun json, not_closed json,
                      closes_at text);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_steps', 'it must be an array of {"step_id", "attempt", '
            '"not_begun"?, "not_closed"?, "closes_at"?}');
    END;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    FOR v_step IN
        SELECT s.step_id, s.attempt, s.not_begun, s.not_closed, s.closes_at
          FROM json_to_recordset(p_steps)
               AS s (step_id text, attempt integer, not_begun json, not_closed json, closes_at text)
    LOOP
        step_id := v_step.step_id;
        SELECT t.event_type, t.attempt INTO v_tip
          FROM flow_step_tip(p_run_id, v_step.step_id) AS t;
        IF v_tip.event_type IS DISTINCT FROM 'step_started'
           OR v_tip.attempt IS DISTINCT FROM v_step.attempt
        THEN
            outcome := 'superseded';
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT t.task_id, t.epoch, t.lease_expires_at INTO v_task
          FROM flow_tasks AS t
         WHERE t.run_id = p_run_id AND t.kind = 'run_step'
           AND t.payload ->> 'step_id' = v_step.step_id
           AND t.payload ->> 'attempt' = v_step.attempt::text
           FOR UPDATE;
        -- a fence, or a dead letter in its place: a worker has begun it
        v_event := CASE WHEN v_task.epoch IS NULL AND v_task.task_id IS NOT NULL
                        THEN coalesce(v_step.not_begun, v_step.not_closed)
                        ELSE v_step.not_closed END;
        v_due := coalesce(flow_deadline(v_step.closes_at), 'infinity');
        IF v_task.lease_expires_at > flow_now() THEN
            outcome := 'at_work';
            IF v_event IS NOT NULL THEN
                v_due := v_task.lease_expires_at;
            END IF;
        ELSIF v_event IS NULL THEN
            outcome := 'taken';
        ELSE
            SELECT a.outcome INTO outcome
              FROM flow_append_many((
                       '[{"run_id":' || to_json(p_run_id)::text || ',"events":['
                       || v_event::text || ']}]')::json) AS a;
            IF outcome = 'appended' THEN
                outcome := 'expired';
                v_expired := true;
                DELETE FROM flow_tasks AS t WHERE t.task_id = v_task.task_id;
                DELETE FROM flow_step_heartbeats AS h
                      WHERE h.run_id = p_run_id AND h.step_id = v_step.step_id;
            END IF;
            RETURN NEXT;
            CONTINUE;
        END IF;
        UPDATE scheduled_wakeups AS w
           SET due_at = v_due, dispatched_at = NULL
         WHERE w.run_id = p_run_id AND w.kind = 'step_deadline'
           AND w.subject_id = v_step.step_id;
        PERFORM flow_lower_mark('', v_due);
        RETURN NEXT;
    END LOOP;
    IF v_expired THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id]);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_expire_steps(text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_expire_steps(text, json)
    IS 'Fails attempts in other queues whose deadline has passed while no worker has them.';

-- sql/functions/wakeups/flow_due.sql
-- flow_due: the earliest wakeups that are due, dispatched or not.
-- Arguments: p_kind, one kind or null for all; p_until, due until then; p_limit.
-- Both partial indexes are read in order and merged, so the cost does not grow with what is not
--   due.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_due(p_kind text, p_until timestamptz, p_limit integer)
RETURNS TABLE (run_id text, kind text, subject_id text, due_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at
      FROM ((SELECT w.run_id, w.kind, w.subject_id, w.due_at
               FROM scheduled_wakeups AS w
              WHERE w.dispatched_at IS NULL AND w.due_at <= p_until
                AND (p_kind IS NULL OR w.kind = p_kind)
              ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
              LIMIT p_limit)
            UNION ALL
            (SELECT w.run_id, w.kind, w.subject_id, w.due_at
               FROM scheduled_wakeups AS w
              WHERE w.dispatched_at IS NOT NULL AND w.due_at <= p_until
                AND (p_kind IS NULL OR w.kind = p_kind)
              ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
              LIMIT p_limit)) AS d
     ORDER BY d.due_at, d.run_id, d.kind, d.subject_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_due(text, timestamptz, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_due(text, timestamptz, integer) IS 'The earliest wakeups that are due.';

-- sql/functions/wakeups/flow_settle_due.sql
-- flow_settle_due: appends the event that settles every due wakeup of one kind; what
-- flow_resume_due_waits and flow_dispose_expired_hooks share.
-- Arguments: p_kind (wait or hook_expiry); p_as_of, wakeups due until then, null for now; p_limit,
--   1 to 1000, the earliest first; p_run_id, one run, or null for all.
-- Returns what this call settled and nothing else.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. For all runs it never
--   waits for a run lock: a run that is busy right now is left for the next call, so that one
--   writer that takes its time cannot hold up all others.
-- SQLSTATEs: WF001, WF010, WF013. Callers: internal.
CREATE FUNCTION flow_settle_due(
    p_kind text, p_as_of timestamptz, p_limit integer, p_run_id text
) RETURNS TABLE (run_id text, subject_id text, due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz;
    v_until timestamptz;
    v_runs text[];
    v_subjects text[];
    v_dues timestamptz[];
BEGIN
    PERFORM flow_check_limit(p_limit);
    v_until := coalesce(p_as_of, flow_now());
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_open_run(p_run_id, '{}');
        v_runs := ARRAY[p_run_id];
    ELSE
        SELECT array_agg(DISTINCT d.run_id) INTO v_runs
          FROM flow_due(p_kind, v_until, p_limit) AS d;
        v_runs := flow_try_lock_runs(v_runs);
    END IF;

    -- under the locks: what is still due
    SELECT array_agg(d.run_id), array_agg(d.subject_id), array_agg(d.due_at)
      INTO v_runs, v_subjects, v_dues
      FROM (SELECT w.run_id, w.subject_id, w.due_at
              FROM scheduled_wakeups AS w
             WHERE w.run_id = ANY (v_runs) AND w.kind = p_kind AND w.due_at <= v_until
             ORDER BY w.due_at, w.run_id, w.subject_id
             LIMIT p_limit) AS d;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    v_at := flow_now();
    INSERT INTO flow_event_log
        (run_id, sequence, event_type, subject_id, payload, recorded_at)
    SELECT s.run_id, s.sequence,
           CASE p_kind WHEN 'wait' THEN 'wait_completed' ELSE 'hook_disposed' END, s.subject_id,
           format('{"%s":%s}', CASE p_kind WHEN 'wait' THEN 'wait_id' ELSE 'hook_id' END,
                  to_json(s.subject_id))::json, v_at
      FROM (SELECT d.run_id, d.subject_id,
                   r.head_sequence + row_number() OVER (PARTITION BY d.run_id ORDER BY d.n)
                       AS sequence
              FROM unnest(v_runs, v_subjects) WITH ORDINALITY AS d (run_id, subject_id, n)
             CROSS JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                                  WHERE f.run_id = d.run_id LIMIT 1) AS r) AS s;
    PERFORM flow_enqueue_drives(v_runs);
    RETURN QUERY
    SELECT d.run_id, d.subject_id, d.due_at
      FROM unnest(v_runs, v_subjects, v_dues) AS d (run_id, subject_id, due_at);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_settle_due(text, timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_settle_due(text, timestamptz, integer, text)
    IS 'Appends the event that settles every due wakeup of one kind.';

-- sql/functions/wakeups/flow_resume_due_waits.sql
-- flow_resume_due_waits: completes every wait that is due, set-based.
-- Arguments: p_as_of, what is due until then, null for now; p_limit, 1 to 1000, the earliest first;
--   p_run_id, one run, or null for all.
-- Returns only what this call settled: of several concurrent calls exactly one returns a row.
-- Locks, in order: retention guard (shared), run locks (busy runs are left for the next call unless
--   p_run_id names one), rows, queue rows.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_resume_due_waits(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_run_id text DEFAULT NULL
) RETURNS TABLE (run_id text, wait_id text, due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.due_at
      FROM flow_settle_due('wait', p_as_of, p_limit, p_run_id) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_resume_due_waits(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_resume_due_waits(timestamptz, integer, text)
    IS 'Completes every wait that is due.';

-- sql/functions/wakeups/flow_dispose_expired_hooks.sql
-- flow_dispose_expired_hooks: disposes every hook whose expiry has passed, set-based.
-- Arguments: p_as_of, what is due until then, null for now; p_limit, 1 to 1000, the earliest first;
--   p_run_id, one run, or null for all.
-- Returns only what this call settled: of several concurrent calls exactly one returns a row.
-- Locks, in order: retention guard (shared), run locks (busy runs are left for the next call unless
--   p_run_id names one), rows, queue rows.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_dispose_expired_hooks(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_run_id text DEFAULT NULL
) RETURNS TABLE (run_id text, hook_id text, due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT s.run_id, s.subject_id, s.due_at
      FROM flow_settle_due('hook_expiry', p_as_of, p_limit, p_run_id) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dispose_expired_hooks(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dispose_expired_hooks(timestamptz, integer, text)
    IS 'Disposes every hook whose expiry has passed.';

-- sql/functions/fleet/flow_worker_beat.sql
-- The registry of workers.
--   flow_worker_beat(...)     the worker is alive; call it about every p_every
--   flow_worker_gone(worker)  it ends in good order; returns whether it was known
--   flow_live_workers()       those that did not miss three beats
-- Arguments: p_worker_id, unique to the process; p_build it runs; p_host, p_pid; p_queues;
--   p_workflows and p_steps it knows, null for all; p_slots, p_running; p_every; p_builds whose
--   runs it drives, null for all; p_accept_unpinned, whether it drives runs of no build.
-- The first beat of a worker makes the runs claimable that rest because nobody knew their step.
-- No lease depends on it: it is what operators and waiting_for read. Workers that missed their
--   beats for a day are forgotten by the next beat of any, and so is who waited for a run an hour
--   ago.
-- Locks: rows of flow_workers; queue rows, only when free. SQLSTATEs: WF010.
-- Callers: worker; flow_live_workers: all.
CREATE FUNCTION flow_worker_beat(
    p_worker_id text, p_build text, p_host text, p_pid integer, p_queues text[],
    p_workflows text[], p_steps text[], p_slots integer, p_running integer,
    p_every interval DEFAULT '10 seconds', p_builds text[] DEFAULT NULL,
    p_accept_unpinned boolean DEFAULT true
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_known boolean;
BEGIN
    IF coalesce(btrim(p_worker_id), '') = '' THEN
        PERFORM flow_raise_argument('p_worker_id', 'it is blank');
    ELSIF p_every IS NULL OR p_every <= '0' OR p_every > interval '1000 years' THEN
        -- three times as long is taken from the time in every list of workers
        PERFORM flow_raise_argument('p_every',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
    v_known := EXISTS (SELECT FROM flow_workers AS w WHERE w.worker_id = p_worker_id);
    INSERT INTO flow_workers AS w (worker_id, runtime_build, builds, accepts_unpinned, host, pid,
        queues, workflows, steps, slots, running, started_at, last_beat, beat_every)
    VALUES (p_worker_id, p_build, p_builds, coalesce(p_accept_unpinned, true),
        coalesce(p_host, ''), coalesce(p_pid, 0), coalesce(p_queues, '{}'), p_workflows, p_steps,
        coalesce(p_slots, 0), coalesce(p_running, 0), v_now, v_now, p_every)
        ON CONFLICT (worker_id) DO UPDATE
       SET runtime_build = excluded.runtime_build, builds = excluded.builds,
           accepts_unpinned = excluded.accepts_unpinned, host = excluded.host,
           pid = excluded.pid, queues = excluded.queues, workflows = excluded.workflows,
           steps = excluded.steps, slots = excluded.slots, running = excluded.running,
           last_beat = excluded.last_beat, beat_every = excluded.beat_every;
    IF NOT v_known AND p_steps IS NOT NULL THEN
        -- what was waiting for a step that this worker knows need not rest any longer
        UPDATE flow_tasks AS t
           SET available_at = v_now
          FROM (SELECT o.task_id
                  FROM (SELECT r.run_id FROM flow_runs AS r
                         WHERE r.blocked_reason IS NOT NULL) AS b
                 CROSS JOIN LATERAL (
                        SELECT f.task_id FROM flow_tasks AS f
                         WHERE f.run_id = b.run_id AND f.kind = 'drive_run'
                           AND f.queue = ANY (p_queues) AND f.lease_owner IS NULL
                           AND f.available_at > v_now AND f.missing_step = ANY (p_steps)
                           FOR UPDATE SKIP LOCKED) AS o
                 LIMIT 1000) AS due
         WHERE t.task_id = due.task_id;
    END IF;
    DELETE FROM flow_workers AS w
          USING (SELECT f.worker_id FROM flow_workers AS f
                  WHERE f.last_beat < v_now - interval '1 day' FOR UPDATE SKIP LOCKED) AS old
          WHERE w.worker_id = old.worker_id;
    -- left by who asked in the moment in which the end was committed
    DELETE FROM flow_run_waiters AS w
          USING (SELECT f.run_id FROM flow_run_waiters AS f
                  WHERE f.waited_until < v_now - interval '1 hour' FOR UPDATE SKIP LOCKED) AS old
          WHERE w.run_id = old.run_id;
END
$$;

CREATE FUNCTION flow_worker_gone(p_worker_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    DELETE FROM flow_workers AS w WHERE w.worker_id = p_worker_id;
    RETURN FOUND;
END
$$;

CREATE FUNCTION flow_live_workers()
RETURNS TABLE (
    worker_id text, runtime_build text, builds text[], accepts_unpinned boolean, host text,
    pid integer, queues text[], workflows text[], steps text[], slots integer, running integer,
    started_at timestamptz, last_beat timestamptz
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT w.worker_id, w.runtime_build, w.builds, w.accepts_unpinned, w.host, w.pid, w.queues,
           w.workflows, w.steps, w.slots, w.running, w.started_at, w.last_beat
      FROM flow_workers AS w
     WHERE w.last_beat > v_now - 3 * w.beat_every
     ORDER BY w.worker_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_worker_beat(text, text, text, integer, text[], text[], text[],
    integer, integer, interval, text[], boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_worker_gone(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_live_workers() FROM PUBLIC;
COMMENT ON FUNCTION flow_worker_beat(text, text, text, integer, text[], text[], text[], integer,
    integer, interval, text[], boolean) IS 'Says that a worker is alive, and what it can do.';
COMMENT ON FUNCTION flow_worker_gone(text) IS 'Says that a worker ends in good order.';
COMMENT ON FUNCTION flow_live_workers() IS 'The workers that did not miss three beats.';

-- sql/functions/fleet/flow_waiting_step.sql
-- flow_waiting_step: why nobody takes a step that its run has left to another queue.
-- Arguments: p_run_id, a run with nothing else to do now; p_build, its build.
-- Returns null when there is no such step, or a live worker has it or will take it; else the
--   reason, for the oldest of them: its queue is paused, no live worker of that queue knows the
--   step, or its task is a dead letter.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_waiting_step(p_run_id text, p_build text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_task record;
    v_paused boolean;
BEGIN
    FOR v_task IN
        SELECT t.queue, t.workflow_name, substr(t.workflow_name, 6) AS step
          FROM flow_tasks AS t
         WHERE t.run_id = p_run_id AND t.kind = 'run_step'
           AND (t.lease_owner IS NULL OR t.lease_expires_at <= v_now)
         ORDER BY t.task_id + 0  -- not in the order of the key: it would be walked whole
         LIMIT 20
    LOOP
        v_paused := EXISTS (SELECT FROM flow_queues AS q WHERE q.queue = v_task.queue AND q.paused);
        IF v_paused THEN
            RETURN format('step %s waits for queue %s, which is paused', v_task.step, v_task.queue);
        END IF;
        PERFORM FROM flow_workers AS w
          WHERE w.last_beat > v_now - 3 * w.beat_every AND v_task.queue = ANY (w.queues)
            AND flow_worker_admits(w, p_build)
            AND (w.steps IS NULL OR v_task.step = ANY (w.steps));
        IF NOT FOUND THEN
            RETURN format('no worker for step %s on queue %s', v_task.step, v_task.queue);
        END IF;
    END LOOP;
    -- a letter whose step was closed meanwhile holds nothing up
    SELECT d.dead_letter_id, d.queue, d.payload ->> 'step_name' AS step
      INTO v_task
      FROM flow_dead_letters AS d
     WHERE d.run_id = p_run_id AND d.kind = 'run_step'
       AND 'step_started' = (
            SELECT e.event_type FROM flow_events AS e
             WHERE e.run_id = p_run_id AND e.subject_id = d.payload ->> 'step_id'
             ORDER BY e.sequence DESC LIMIT 1)
     ORDER BY d.dead_letter_id
     LIMIT 1;
    IF FOUND THEN
        RETURN format('step %s is dead letter %s of queue %s: redrive it', v_task.step,
                      v_task.dead_letter_id, v_task.queue);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_waiting_step(text, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_waiting_step(text, text)
    IS 'Why nobody takes a step that its run has left to another queue.';

-- sql/functions/fleet/flow_waiting_for.sql
-- flow_waiting_for: why nobody takes a run that has work to do, as far as it can be computed.
-- Arguments: p_run_id; p_queue, p_workflow, p_build, p_status, p_dead_letter_id as in flow_runs.
-- Returns null when the run has ended, has nothing to do now, is at work, or is a dead letter (then
--   blocked_reason says so); else: its queue is paused, or no live worker serves its queue, its
--   build, its workflow or the step that the worker who tried it last did not know; or what
--   flow_waiting_step says of a step that it left to another queue. Runs that a
--   live worker will take get null as well.
-- Locks: none. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_waiting_for(
    p_run_id text, p_queue text, p_workflow text, p_build text, p_status text,
    p_dead_letter_id bigint
) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := flow_now();
    v_task record;
    v_workers record;
BEGIN
    IF flow_is_terminal(p_status) OR p_dead_letter_id IS NOT NULL THEN
        RETURN NULL;
    END IF;
    SELECT t.available_at, t.missing_step INTO v_task
      FROM flow_tasks AS t
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run'
       AND (t.lease_owner IS NULL OR t.lease_expires_at <= v_now);
    IF NOT FOUND THEN
        RETURN flow_waiting_step(p_run_id, p_build);
    END IF;
    IF v_task.missing_step IS NULL AND v_task.available_at > v_now THEN
        RETURN NULL;
    END IF;
    PERFORM FROM flow_queues AS q WHERE q.queue = p_queue AND q.paused;
    IF FOUND THEN
        RETURN format('queue %s is paused', p_queue);
    END IF;
    SELECT count(*) AS serve,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)) AS admit,
           count(*) FILTER (WHERE w.workflows IS NULL OR p_workflow = ANY (w.workflows)) AS know,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)
               AND (w.workflows IS NULL OR p_workflow = ANY (w.workflows))) AS fit,
           count(*) FILTER (WHERE flow_worker_admits(w, p_build)
               AND (w.workflows IS NULL OR p_workflow = ANY (w.workflows))
               AND v_task.missing_step = ANY (w.steps)) AS step
      INTO v_workers
      FROM flow_workers AS w
     WHERE w.last_beat > v_now - 3 * w.beat_every AND p_queue = ANY (w.queues);
    RETURN CASE
        WHEN v_workers.fit > 0 AND v_workers.step = 0 AND v_task.missing_step IS NOT NULL
            THEN format('no worker for step %s', v_task.missing_step)
        WHEN v_workers.fit > 0 THEN NULL
        WHEN v_workers.serve = 0 THEN format('no worker for queue %s', p_queue)
        WHEN v_workers.know = 0 THEN format('no worker for workflow %s', p_workflow)
        WHEN v_workers.admit = 0 AND p_build IS NULL THEN 'no worker for runs without a build'
        WHEN v_workers.admit = 0 THEN format('no worker for build %s', p_build)
        WHEN p_build IS NULL THEN format('no worker for workflow %s without a build', p_workflow)
        ELSE format('no worker for workflow %s of build %s', p_workflow, p_build) END;
END
$$;

-- Whether a worker drives runs of a build; null is no build.
CREATE FUNCTION flow_worker_admits(p_worker flow_workers, p_build text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_build IS NULL THEN (p_worker).accepts_unpinned
            ELSE (p_worker).builds IS NULL OR p_build = ANY ((p_worker).builds) END;

REVOKE EXECUTE ON FUNCTION flow_waiting_for(text, text, text, text, text, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_worker_admits(flow_workers, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_waiting_for(text, text, text, text, text, bigint)
    IS 'Why nobody takes a run that has work to do.';
COMMENT ON FUNCTION flow_worker_admits(flow_workers, text)
    IS 'Whether a worker drives runs of a build.';

-- sql/functions/fleet/flow_build_usage.sql
-- flow_build_usage: which builds still have open runs, and who can drive them: a build without open
-- runs may be retired.
-- Arguments: none. Returns one row a build that open runs are pinned to or that a live worker runs:
--   open_runs, oldest_created_at of them, and live_workers, those that drive runs of the build.
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_build_usage()
RETURNS TABLE (
    runtime_build text, open_runs bigint, oldest_created_at timestamptz, live_workers bigint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT w.runtime_build, w.builds FROM flow_live_workers() AS w
    ), used AS (
        SELECT r.runtime_build, count(*) AS n, min(r.created_at) AS oldest
          FROM flow_runs AS r
         WHERE r.runtime_build IS NOT NULL AND r.ended_at IS NULL AND r.head_sequence > 0
         GROUP BY r.runtime_build
    )
    SELECT coalesce(u.runtime_build, b.runtime_build), coalesce(u.n, 0), u.oldest,
           (SELECT count(*) FROM live AS l
             WHERE l.builds IS NULL
                OR coalesce(u.runtime_build, b.runtime_build) = ANY (l.builds))
      FROM used AS u
      FULL JOIN (SELECT DISTINCT l.runtime_build FROM live AS l
                  WHERE l.runtime_build IS NOT NULL) AS b
        ON b.runtime_build = u.runtime_build
     ORDER BY 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_build_usage() FROM PUBLIC;
COMMENT ON FUNCTION flow_build_usage() IS 'Which builds still have open runs.';

-- sql/functions/fleet/flow_health.sql
-- flow_health: what an operator looks at first.
--   flow_health()             one row a fact
--   flow_snapshot_holders()   who keeps vacuum from removing dead rows, the oldest first
-- Facts, by kind and name:
--   queue          one row a queue: count of tasks that are ready, age of the oldest; detail has
--                  leased, expired, delayed, paused and dead_letters
--   wakeups        deadlines that have passed and are not dispatched: count (1000 at most), lag
--   workers        live workers
--   unserved       work that is due and no live worker takes: its workflow or step and its queue,
--                  count, age of the oldest; detail has queue, workflow, step and build; the 100
--                  with the most
--   snapshot       the oldest holder of a snapshot: name, age; detail as flow_snapshot_holders
-- Counting a queue reads its tasks: not for a tight loop.
-- Holders: sessions, prepared transactions, replication slots, standbys with feedback. A role
--   without pg_read_all_stats sees the sessions of its own and not those of others.
-- Arguments: none. Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_snapshot_holders()
RETURNS TABLE (
    kind text, name text, pid integer, state text, transactions_behind bigint, age interval
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.kind, h.name, h.pid, h.state, age(h.xmin)::bigint, clock.now - h.since
      FROM (SELECT flow_now() AS now) AS clock
     CROSS JOIN (
            SELECT 'session' AS kind, coalesce(nullif(a.application_name, ''), a.backend_type)
                       AS name, a.pid, a.state,
                   CASE WHEN age(a.backend_xid) > coalesce(age(a.backend_xmin), -1)
                        THEN a.backend_xid ELSE a.backend_xmin END AS xmin,
                   a.xact_start AS since
              FROM pg_catalog.pg_stat_activity AS a
             WHERE (a.datname = current_database() OR a.datname IS NULL)
               AND a.backend_type NOT IN ('walsender', 'autovacuum worker')
               AND a.pid <> pg_backend_pid()
            UNION ALL
            SELECT 'prepared transaction', p.gid, NULL, NULL, p.transaction, p.prepared
              FROM pg_catalog.pg_prepared_xacts AS p
             WHERE p.database = current_database()
            UNION ALL
            SELECT 'replication slot', s.slot_name::text, s.active_pid,
                   CASE WHEN s.active THEN 'active' ELSE 'inactive' END, s.xmin, NULL
              FROM pg_catalog.pg_replication_slots AS s
            UNION ALL
            SELECT 'standby', r.application_name, r.pid, r.state, r.backend_xmin, NULL
              FROM pg_catalog.pg_stat_replication AS r) AS h
     WHERE h.xmin IS NOT NULL
     ORDER BY age(h.xmin) DESC, clock.now - h.since DESC NULLS LAST;
END
$$;

CREATE FUNCTION flow_health()
RETURNS TABLE (kind text, name text, count bigint, age interval, detail json)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT 'queue', q.queue, coalesce(t.ready, 0), v_now - t.oldest,
           json_build_object('leased', coalesce(t.leased, 0), 'expired', coalesce(t.expired, 0),
               'delayed', coalesce(t.delayed, 0), 'paused', coalesce(c.paused, false),
               'dead_letters', (SELECT count(*) FROM flow_dead_letters AS d
                                 WHERE d.queue = q.queue))
      FROM (SELECT l.queue FROM flow_lanes AS l
            UNION SELECT s.queue FROM flow_queues AS s
            UNION SELECT d.queue FROM flow_dead_letters AS d) AS q
      LEFT JOIN flow_queues AS c ON c.queue = q.queue
      LEFT JOIN LATERAL (
            SELECT count(*) FILTER (WHERE f.lease_owner IS NULL AND f.available_at <= v_now)
                       AS ready,
                   min(f.available_at) FILTER (WHERE f.lease_owner IS NULL
                                                 AND f.available_at <= v_now) AS oldest,
                   count(*) FILTER (WHERE f.lease_expires_at > v_now) AS leased,
                   count(*) FILTER (WHERE f.lease_expires_at <= v_now) AS expired,
                   count(*) FILTER (WHERE f.lease_owner IS NULL AND f.available_at > v_now)
                       AS delayed
              FROM flow_tasks AS f WHERE f.queue = q.queue) AS t ON true
     ORDER BY q.queue;
    RETURN QUERY
    SELECT 'wakeups', '', count(*), v_now - min(d.due_at), NULL::json
      FROM (SELECT w.due_at FROM scheduled_wakeups AS w
             WHERE w.dispatched_at IS NULL AND w.due_at <= v_now
             ORDER BY w.due_at LIMIT 1000) AS d;
    RETURN QUERY
    SELECT 'workers', '', count(*), NULL::interval, NULL::json FROM flow_live_workers() AS l;
    RETURN QUERY
    SELECT 'unserved',
           coalesce('step ' || t.step, 'workflow ' || t.workflow) || ' on queue ' || t.queue,
           t.tasks, v_now - t.oldest,
           json_build_object('queue', t.queue, 'workflow', t.workflow, 'step', t.step,
                             'build', t.build)
      FROM (SELECT f.queue, nullif(f.runtime_build, '') AS build,
                   CASE f.kind WHEN 'run_step' THEN substr(f.workflow_name, 6)
                               ELSE f.missing_step END AS step,
                   CASE f.kind WHEN 'drive_run' THEN f.workflow_name END AS workflow,
                   count(*) AS tasks, min(f.enqueued_at) AS oldest
              FROM flow_tasks AS f
             WHERE f.lease_owner IS NULL AND f.kind IN ('drive_run', 'run_step')
               AND (f.available_at <= v_now OR f.missing_step IS NOT NULL)
             GROUP BY 1, 2, 3, 4) AS t
     WHERE NOT EXISTS (
            SELECT FROM flow_workers AS w
             WHERE w.last_beat > v_now - 3 * w.beat_every AND t.queue = ANY (w.queues)
               AND flow_worker_admits(w, t.build)
               AND (t.workflow IS NULL OR w.workflows IS NULL OR t.workflow = ANY (w.workflows))
               AND (t.step IS NULL OR w.steps IS NULL OR t.step = ANY (w.steps)))
     ORDER BY t.tasks DESC, t.queue, t.workflow, t.step, t.build LIMIT 100;
    RETURN QUERY
    SELECT 'snapshot', h.name, h.transactions_behind, h.age,
           json_build_object('kind', h.kind, 'pid', h.pid, 'state', h.state)
      FROM flow_snapshot_holders() AS h LIMIT 1;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_snapshot_holders() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_health() FROM PUBLIC;
COMMENT ON FUNCTION flow_snapshot_holders()
    IS 'Who keeps vacuum from removing dead rows, the oldest first.';
COMMENT ON FUNCTION flow_health() IS 'What an operator looks at first.';

-- sql/functions/inspect/flow_load_runs.sql
-- flow_load_runs: histories, for drivers.
-- Arguments: p_run_ids; unknown runs are left out. p_after, null or one entry a run: only the
--   events after that sequence; a missing entry means the whole history.
-- Returns one row a run: head, status, lease epoch, wake count (0 without a task), the database
--   time, and events, the text of a JSON array in order of
--   [sequence, type, event id, recorded at (RFC 3339, UTC, microseconds), payload], with a sixth
--   item where the wire named a schema version.
--   All of it is one moment: a wake that is not counted here comes with events that are not here.
-- Locks: none. SQLSTATEs: none. Callers: worker, reader.
CREATE FUNCTION flow_load_runs(p_run_ids text[], p_after bigint[] DEFAULT NULL)
RETURNS TABLE (
    run_id text, head_sequence bigint, status text, lease_epoch bigint, wakes bigint,
    db_now timestamptz, events text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    SELECT r.run_id, r.head_sequence, r.status, r.lease_epoch, coalesce(t.wakes, 0), v_now, h.events
      FROM (SELECT u.run_id, min(coalesce(u.after, 0)) AS after
              FROM unnest(p_run_ids, p_after) AS u (run_id, after)
             WHERE u.run_id IS NOT NULL
             GROUP BY u.run_id) AS i
     CROSS JOIN LATERAL (
            SELECT f.run_id, f.head_sequence, f.status, f.lease_epoch
              FROM flow_runs AS f WHERE f.run_id = i.run_id AND f.head_sequence > 0 LIMIT 1) AS r
      LEFT JOIN LATERAL (
            SELECT f.wakes FROM flow_tasks AS f
             WHERE f.run_id = i.run_id AND f.kind = 'drive_run' LIMIT 1) AS t ON true
     CROSS JOIN LATERAL (
            SELECT '[' || coalesce(string_agg(CASE
                       WHEN e.event_type IS NULL THEN (
                           SELECT string_agg('[' || u.sequence || ',"' || u.event_type || '","'
                                      || flow_event_id(e.run_id, u.sequence) || e.at_text
                                      || u.payload || ']', ',')
                             FROM flow_unbundle(e.payload, e.sequence, e.event_count) AS u
                            WHERE u.sequence > i.after)
                       ELSE '[' || e.sequence || ',' || to_json(e.event_type) || ',"'
                           || coalesce(e.event_id, flow_event_id(e.run_id, e.sequence)) || e.at_text
                           || e.payload || coalesce(',' || e.schema_version, '') || ']'
                       END, ','), '') || ']' AS events
              FROM (SELECT f.run_id, f.sequence, f.event_type, f.event_id, f.payload, f.event_count,
                           f.schema_version,
                           '","' || flow_time_text(f.recorded_at) || '",' AS at_text
                      FROM flow_event_log AS f
                     WHERE f.run_id = i.run_id AND f.sequence > i.after
                     ORDER BY f.sequence
                    OFFSET 0) AS e) AS h;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_load_runs(text[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_load_runs(text[], bigint[])
    IS 'Histories, whole or after a sequence, for drivers.';

-- sql/functions/inspect/flow_history.sql
-- flow_history: a page of a run's events.
-- Arguments: p_run_id; p_after, events beyond this sequence; p_limit, 1 to 1000.
-- Returns the events in order; payload is the event without its type, its text as it was stored;
--   schema_version null means that the envelope had none, which is read as 1.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_history(
    p_run_id text, p_after bigint DEFAULT 0, p_limit integer DEFAULT 1000
) RETURNS TABLE (
    run_id text, sequence bigint, event_id uuid, event_type text, payload text,
    recorded_at timestamptz, schema_version smallint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_check_exists(p_run_id);
    RETURN QUERY
    SELECT l.run_id, e.sequence, coalesce(l.event_id, flow_event_id(l.run_id, e.sequence)),
           e.event_type, e.payload::text, l.recorded_at, l.schema_version
      FROM (SELECT f.run_id, f.sequence, f.event_id, f.event_type, f.payload, f.recorded_at,
                   f.schema_version, f.event_count
              FROM flow_event_log AS f
             WHERE f.run_id = p_run_id AND f.sequence > coalesce(p_after, 0)
             ORDER BY f.sequence
             LIMIT p_limit) AS l
     CROSS JOIN LATERAL (
            SELECT l.sequence, l.event_type, l.payload WHERE l.event_type IS NOT NULL
            UNION ALL
            SELECT u.sequence, u.event_type, u.payload
              FROM flow_unbundle(l.payload, l.sequence, l.event_count) AS u
             WHERE l.event_type IS NULL) AS e
     WHERE e.sequence > coalesce(p_after, 0)
     ORDER BY e.sequence
     LIMIT p_limit;
END
$$;

-- Raises WF001 unless the run exists.
CREATE FUNCTION flow_check_exists(p_run_id text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    PERFORM FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_history(text, bigint, integer) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_exists(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_history(text, bigint, integer) IS 'A page of a run''s events.';
COMMENT ON FUNCTION flow_check_exists(text) IS 'Raises WF001 unless the run exists.';

-- sql/functions/inspect/flow_list_runs.sql
-- flow_list_runs: a page of runs, newest first.
-- Arguments: filters that are null do not filter: p_status, p_workflow_name, p_queue, p_blocked;
--   p_after_created_at and p_after_run_id, the last row of the page before; p_limit, 1 to 1000.
-- The text of the statement holds only the filters that are given, and names the order of the index
--   that it shall use: by status, by workflow, by blocked, or by time with the rest as a filter.
--   Pending, running and suspended are filters among the open runs: an index that told them apart
--   would be written each time a run is suspended or goes on.
-- Order: created_at descending, then run_id. Locks: none. SQLSTATEs: WF010.
-- Callers: client, worker, reader.
CREATE FUNCTION flow_list_runs(
    p_status text DEFAULT NULL, p_workflow_name text DEFAULT NULL, p_queue text DEFAULT NULL,
    p_blocked boolean DEFAULT NULL, p_after_created_at timestamptz DEFAULT NULL,
    p_after_run_id text DEFAULT NULL, p_limit integer DEFAULT 100
) RETURNS TABLE (
    run_id text, workflow_name text, workflow_version text, runtime_build text, queue text,
    status text, head_sequence bigint, blocked_reason text, created_at timestamptz,
    updated_at timestamptz, ended_at timestamptz, waiting_for text, attributes jsonb
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
-- whatever the planner knows of the table, the index that has the order is the one to walk
SET enable_sort = off SET enable_incremental_sort = off
AS $$
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_status <> ALL (ARRAY['pending', 'running', 'suspended', 'cancelling', 'completed',
                              'failed', 'cancelled', 'continued_as_new'])
    THEN
        PERFORM flow_raise_argument('p_status', 'there is no such status');
    END IF;
    RETURN QUERY EXECUTE concat(
        'SELECT r.run_id, r.workflow_name, r.workflow_version, r.runtime_build, r.queue, r.status,
                r.head_sequence, r.blocked_reason, r.created_at, r.updated_at, r.ended_at,
                flow_waiting_for(r.run_id, r.queue, r.workflow_name, r.runtime_build, r.status,
                                 r.dead_letter_id), r.attributes
           FROM flow_runs AS r
          WHERE r.head_sequence > 0',
        CASE WHEN p_status IN ('pending', 'running', 'suspended')
             THEN ' AND r.listed_as = ''open'' AND r.status = $1'
             WHEN p_status IS NOT NULL THEN ' AND r.listed_as = $1' END,
        CASE WHEN p_workflow_name IS NOT NULL THEN ' AND r.workflow_name = $2' END,
        CASE WHEN p_queue IS NOT NULL THEN ' AND r.queue = $3' END,
        CASE p_blocked WHEN true THEN ' AND r.blocked_reason IS NOT NULL'
                       WHEN false THEN ' AND r.blocked_reason IS NULL' END,
        CASE WHEN p_after_created_at IS NOT NULL THEN ' AND r.created_at <= $4
            AND (r.created_at < $4 OR r.run_id > $5)' END,
        ' ORDER BY r.created_at DESC, r.run_id',
        CASE WHEN p_status IS NULL AND p_workflow_name IS NULL AND p_blocked IS NOT true
             THEN ' COLLATE "POSIX"' END,
        ' LIMIT $6')
    USING p_status, p_workflow_name, p_queue, p_after_created_at, coalesce(p_after_run_id, ''),
          p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_list_runs(text, text, text, boolean, timestamptz, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_runs(text, text, text, boolean, timestamptz, text, integer)
    IS 'A page of runs, newest first.';

-- sql/functions/inspect/flow_list_run_ids.sql
-- flow_list_run_ids: run ids in byte order.
-- Arguments: p_after, ids beyond this one; p_limit, 1 to 1000.
-- Locks: none. SQLSTATEs: WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_list_run_ids(p_after text DEFAULT '', p_limit integer DEFAULT 1000)
RETURNS TABLE (run_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    RETURN QUERY
    SELECT r.run_id
      FROM flow_runs AS r
     WHERE r.run_id > coalesce(p_after, '') AND r.head_sequence > 0
     ORDER BY r.run_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_run_ids(text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_run_ids(text, integer) IS 'Run ids in byte order.';

-- sql/functions/inspect/flow_run_info.sql
-- flow_run_info: one run, as the list page shows it, with its lease and task.
-- Arguments: p_run_id. waiting_for is computed: why no live worker takes it.
-- Locks: none. SQLSTATEs: WF001. Callers: client, worker, reader.
CREATE FUNCTION flow_run_info(p_run_id text)
RETURNS TABLE (
    run_id text, workflow_name text, workflow_version text, runtime_build text, queue text,
    status text, head_sequence bigint, blocked_reason text, created_at timestamptz,
    updated_at timestamptz, ended_at timestamptz, lease_epoch bigint, lease_owner text,
    lease_expires_at timestamptz, available_at timestamptz, waiting_for text,
    dead_letter_id bigint, crashes integer, attributes jsonb
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_exists(p_run_id);
    RETURN QUERY
    SELECT r.run_id, r.workflow_name, r.workflow_version, r.runtime_build, r.queue, r.status,
           r.head_sequence, r.blocked_reason, r.created_at, r.updated_at, r.ended_at,
           r.lease_epoch, t.lease_owner, t.lease_expires_at, t.available_at,
           flow_waiting_for(r.run_id, r.queue, r.workflow_name, r.runtime_build, r.status,
                            r.dead_letter_id),
           r.dead_letter_id, coalesce(t.crashes, 0), r.attributes
      FROM flow_runs AS r
      LEFT JOIN flow_tasks AS t ON t.run_id = r.run_id AND t.kind = 'drive_run'
     WHERE r.run_id = p_run_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_run_info(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_run_info(text) IS 'One run with its lease and task.';

-- sql/functions/inspect/flow_run_summary.sql
-- flow_run_summary: how many runs stand where, and what the open ones wait for.
-- Arguments: none. Counts the whole of flow_runs by an index, so its cost grows with the number of
--   runs; open runs cost more, because their rows tell in which status they are. The other counts
--   are over open things only. pending_retries are delayed retries.
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_run_summary()
RETURNS TABLE (
    total bigint, pending bigint, running bigint, suspended bigint, cancelling bigint,
    completed bigint, failed bigint, cancelled bigint, continued_as_new bigint, terminal bigint,
    non_terminal bigint, open_waits bigint, active_hooks bigint, pending_retries bigint
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT coalesce(sum(s.n), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'pending'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'running'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'suspended'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'cancelling'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'completed'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'failed'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'cancelled'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE s.status = 'continued_as_new'), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE flow_is_terminal(s.status)), 0)::bigint,
           coalesce(sum(s.n) FILTER (WHERE NOT flow_is_terminal(s.status)), 0)::bigint,
           (SELECT count(*) FROM scheduled_wakeups AS w WHERE w.kind = 'wait'),
           (SELECT count(*) FROM flow_active_hooks AS h),
           (SELECT count(*) FROM scheduled_wakeups AS w WHERE w.kind = 'step_retry')
      FROM (SELECT r.listed_as AS status, count(*) AS n
              FROM flow_runs AS r
             WHERE r.listed_as IN ('cancelling', 'completed', 'failed', 'cancelled',
                                   'continued_as_new')
             GROUP BY r.listed_as
            UNION ALL
            SELECT r.status, count(*) FROM flow_runs AS r
             WHERE r.listed_as = 'open'
             GROUP BY r.status) AS s;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_run_summary() FROM PUBLIC;
COMMENT ON FUNCTION flow_run_summary()
    IS 'How many runs stand where, and what the open ones wait for.';

-- sql/functions/inspect/flow_open_suspensions.sql
-- flow_open_suspensions: what open runs wait for.
-- Arguments: p_run_id, one run, or null for all; p_after_run_id, p_after_kind and
--   p_after_subject_id, the last row of the page before (without a kind: everything beyond that
--   run); p_limit, 1 to 1000; p_as_of, the moment due is judged at, null for now.
-- Returns run_id, kind (wait, hook, retry, or step for one in another queue), subject_id, due_at,
--   and due: whether the deadline has passed, both null for what has none. Order: run, kind as
--   listed, subject.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_open_suspensions(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_kind text DEFAULT '',
    p_after_subject_id text DEFAULT '', p_limit integer DEFAULT 1000,
    p_as_of timestamptz DEFAULT NULL
) RETURNS TABLE (run_id text, kind text, subject_id text, due_at timestamptz, due boolean)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := coalesce(p_as_of, flow_now());
    v_after text := coalesce(p_after_run_id, '');
    v_low text := greatest(coalesce(p_run_id, ''), coalesce(p_after_run_id, '') COLLATE "C");
    v_high text := coalesce(p_run_id, '~');  -- no run id is beyond it
    v_rank integer := CASE p_after_kind
        WHEN 'wait' THEN 0 WHEN 'hook' THEN 1 WHEN 'retry' THEN 2 WHEN 'step' THEN 3 ELSE 4 END;
    v_subject text := coalesce(p_after_subject_id, '');
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_check_exists(p_run_id);
    END IF;
    RETURN QUERY
    SELECT s.run_id,
           CASE s.rank WHEN 0 THEN 'wait' WHEN 1 THEN 'hook' WHEN 2 THEN 'retry' ELSE 'step' END,
           s.subject_id, s.due_at, s.due_at <= v_until
      FROM ((SELECT w.run_id, k.rank, w.subject_id, nullif(w.due_at, 'infinity')
               FROM scheduled_wakeups AS w
              CROSS JOIN LATERAL (
                    SELECT CASE w.kind WHEN 'wait' THEN 0 WHEN 'step_retry' THEN 2
                                       WHEN 'step_deadline' THEN 3 END AS rank) AS k
              WHERE w.run_id BETWEEN v_low AND v_high AND k.rank IS NOT NULL
                AND (w.run_id, k.rank, w.subject_id) > (v_after, v_rank, v_subject)
              ORDER BY w.run_id, k.rank, w.subject_id
              LIMIT p_limit)
            UNION ALL
            (SELECT h.run_id, 1 AS rank, h.hook_id, h.expires_at
               FROM flow_active_hooks AS h
              WHERE h.run_id BETWEEN v_low AND v_high
                AND (h.run_id, 1, h.hook_id) > (v_after, v_rank, v_subject)
              ORDER BY h.run_id, h.hook_id
              LIMIT p_limit)) AS s (run_id, rank, subject_id, due_at)
     ORDER BY s.run_id, s.rank, s.subject_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_open_suspensions(text, text, text, text, integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_open_suspensions(text, text, text, text, integer, timestamptz)
    IS 'What open runs wait for.';

-- sql/functions/inspect/flow_list_active_hooks.sql
-- flow_list_active_hooks: the hooks that can be answered. The rows hold tokens, which are secrets.
-- Arguments: p_run_id, one run, or null for all; p_after_run_id and p_after_hook_id, the last row
--   of the page before; p_limit, 1 to 1000. Order: run, hook.
-- Locks: none. SQLSTATEs: WF001, WF010. Callers: client, worker.
CREATE FUNCTION flow_list_active_hooks(
    p_run_id text DEFAULT NULL, p_after_run_id text DEFAULT '', p_after_hook_id text DEFAULT '',
    p_limit integer DEFAULT 1000
) RETURNS TABLE (
    run_id text, hook_id text, token text, metadata json, expires_at timestamptz,
    created_at timestamptz, payload_schema json
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_low text := coalesce(p_run_id, '');
    v_high text := coalesce(p_run_id, '~');  -- no run id is beyond it
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF p_run_id IS NOT NULL THEN
        PERFORM flow_check_exists(p_run_id);
    END IF;
    RETURN QUERY
    SELECT h.run_id, h.hook_id, h.token, h.metadata, h.expires_at, h.created_at,
           h.payload_schema
      FROM flow_active_hooks AS h
     WHERE h.run_id BETWEEN v_low AND v_high
       AND (h.run_id, h.hook_id) > (coalesce(p_after_run_id, ''), coalesce(p_after_hook_id, ''))
     ORDER BY h.run_id, h.hook_id
     LIMIT p_limit;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_list_active_hooks(text, text, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_list_active_hooks(text, text, text, integer)
    IS 'The hooks that can be answered, with their tokens.';

-- sql/functions/inspect/flow_find_hook.sql
-- flow_find_hook: the run and hook that have a token, among the active ones.
-- Arguments: p_token, the bearer token. Returns no row when there is none.
-- Locks: none. SQLSTATEs: none. Callers: client, worker.
CREATE FUNCTION flow_find_hook(p_token text) RETURNS TABLE (run_id text, hook_id text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.run_id, h.hook_id FROM flow_active_hooks AS h WHERE h.token = p_token;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_find_hook(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_find_hook(text) IS 'The run and hook that have a token.';

-- sql/functions/inspect/flow_due_wakeups.sql
-- flow_due_wakeups: the earliest deadlines that have passed, dispatched or not.
-- Arguments: p_as_of, due until then, null for now; p_limit, 1 to 1000; p_kind, one kind (wait,
--   step_retry, hook_expiry, step_deadline), or null for all.
-- Order: kind, run, subject, among the p_limit earliest.
-- Locks: none. SQLSTATEs: WF010. Callers: client, worker, reader.
CREATE FUNCTION flow_due_wakeups(
    p_as_of timestamptz DEFAULT NULL, p_limit integer DEFAULT 1000, p_kind text DEFAULT NULL
) RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM flow_check_limit(p_limit);
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM flow_due(p_kind, coalesce(p_as_of, flow_now()), p_limit) AS d
      LEFT JOIN LATERAL (
            SELECT f.runtime_build FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true
     ORDER BY d.kind COLLATE "C", d.run_id COLLATE "C", d.subject_id COLLATE "C";
END
$$;

REVOKE EXECUTE ON FUNCTION flow_due_wakeups(timestamptz, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_due_wakeups(timestamptz, integer, text)
    IS 'The earliest deadlines that have passed.';

-- sql/functions/inspect/flow_next_wakeup.sql
-- flow_next_wakeup: the earliest deadline, due or not, dispatched or not.
-- Arguments: none. Returns at most one row, the first by (due_at, run, kind, subject).
-- Locks: none. SQLSTATEs: none. Callers: client, worker, reader.
CREATE FUNCTION flow_next_wakeup()
RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build
      FROM flow_due(NULL, '9999-12-31 23:59:59.999999+00', 1) AS d  -- all that has a deadline
      LEFT JOIN LATERAL (
            SELECT f.runtime_build FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_next_wakeup() FROM PUBLIC;
COMMENT ON FUNCTION flow_next_wakeup() IS 'The earliest deadline.';

-- sql/functions/queue/flow_dedupe_key.sql
-- What tasks are checked for, and by what two of them are the same.
--   flow_dedupe_key(kind, run, payload)   kind and SHA-256 of the ids it addresses, each with its
--                                         length; a token is only in there as part of the hash
--   flow_check_task(...)                  refuses what makes no sense
--   flow_is_token_kind(kind)              whether the payload of the kind holds a token
-- Arguments: as in flow_enqueue_task. Locks: none. SQLSTATEs: WF010, WF013. Callers: internal.
CREATE FUNCTION flow_dedupe_key(p_kind text, p_run_id text, p_payload json) RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT p_kind || ':' || encode(sha256(convert_to(
               string_agg(octet_length(i.part) || ':' || i.part, ',' ORDER BY i.n), 'UTF8')), 'hex')
      FROM (VALUES (1, p_kind), (2, coalesce(p_run_id, '')),
                   (3, coalesce(flow_json_get(p_payload, 'wait_id')::text, '')),
                   (4, coalesce(flow_json_get(p_payload, 'hook_id')::text, '')),
                   (5, coalesce(flow_json_get(p_payload, 'token')::text, ''))) AS i (n, part)
$$;

CREATE FUNCTION flow_is_token_kind(p_kind text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token');

CREATE FUNCTION flow_check_task(
    p_kind text, p_payload json, p_queue text, p_run_id text, p_dedupe_mode text,
    p_dedupe_ttl interval, p_max_attempts integer, p_retry_delay interval, p_timeout interval,
    p_max_stalled integer
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_member text := CASE
        WHEN p_kind = 'resume_wait' THEN 'wait_id'
        WHEN p_kind IN ('resume_hook', 'dispose_hook') THEN 'hook_id'
        WHEN p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token') THEN 'token' END;
BEGIN
    IF p_kind IS NULL OR p_kind NOT IN (
        'drive_run', 'resume_wait', 'resume_hook', 'resume_hook_by_token', 'dispose_hook',
        'dispose_hook_by_token', 'resume_scheduled_run', 'resume_due_waits', 'resume_due_retries')
    THEN
        PERFORM flow_raise_argument('p_kind', 'there is no such kind of task');
    ELSIF p_kind IN ('resume_hook_by_token', 'dispose_hook_by_token', 'resume_due_waits',
        'resume_due_retries')
    THEN
        IF p_run_id IS NOT NULL THEN
            PERFORM flow_raise_argument('p_run_id', 'tasks of this kind name no run');
        END IF;
    ELSIF NOT coalesce(flow_run_id_is_valid(p_run_id), false) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    IF v_member IS NOT NULL AND (p_payload IS NULL OR json_typeof(p_payload) <> 'object'
        OR coalesce(json_typeof(flow_json_get(p_payload, v_member)), '') <> 'string')
    THEN
        PERFORM flow_raise_argument('p_payload',
            'it must be an object with the string ' || v_member);
    ELSIF octet_length(p_payload::text) > 1048576 THEN
        PERFORM flow_raise_argument('p_payload', 'it is over 1048576 bytes');
    ELSIF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'it must be 1 to 255 bytes, not blank');
    ELSIF p_dedupe_mode IS NULL OR p_dedupe_mode NOT IN (
        'off', 'until_terminal', 'until_terminal_or_ttl', 'keep_latest')
    THEN
        PERFORM flow_raise_argument('p_dedupe_mode', 'there is no such mode');
    ELSIF (p_dedupe_mode = 'until_terminal_or_ttl') <> (p_dedupe_ttl IS NOT NULL)
        OR p_dedupe_ttl <= '0' OR p_dedupe_ttl > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_dedupe_ttl',
            'it belongs to until_terminal_or_ttl, must be longer than nothing, and at most '
            '1000 years');
    ELSIF p_max_attempts < 1 OR p_max_stalled < 0 THEN
        PERFORM flow_raise_argument('p_max_attempts', 'attempts begin at one, crashes at none');
    ELSIF p_retry_delay < '0' OR p_timeout <= '0'
        OR greatest(p_retry_delay, p_timeout) > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_retry_delay',
            'a delay or timeout cannot be negative, or longer than 1000 years');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dedupe_key(text, text, json) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_is_token_kind(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_task(text, json, text, text, text, interval, integer,
    interval, interval, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_dedupe_key(text, text, json) IS 'By what two tasks are the same.';
COMMENT ON FUNCTION flow_is_token_kind(text) IS 'Whether the payload of the kind holds a token.';
COMMENT ON FUNCTION flow_check_task(text, json, text, text, text, interval, integer, interval,
    interval, integer) IS 'Refuses a task that makes no sense.';

-- sql/functions/queue/flow_bury_tasks.sql
-- flow_bury_tasks: turns tasks into dead letters; the one place where tasks give up.
-- Arguments: p_task_ids, their rows locked by the caller, and the runs of drive tasks too;
--   p_reason, or null for tasks whose lease expired once too often.
-- The run of a drive task is blocked with the reason, nothing wakes it until the letter is
--   redriven, and its fence is raised: whoever comes back late is refused. A run that has ended
--   needs neither.
--   The letter of a task by token names run and hook, when its hook is active, and never the token.
-- Locks: rows; the queue rows and run locks are the caller's. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_bury_tasks(p_task_ids bigint[], p_reason text)
RETURNS TABLE (
    task_id bigint, dead_letter_id bigint, run_id text, queue text, crashes integer
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM flow_tasks AS t
              WHERE t.task_id = ANY (p_task_ids)
        RETURNING t.task_id, t.queue, t.kind, t.run_id, t.payload, t.priority, t.attempts,
                  t.crashes + CASE WHEN p_reason IS NULL THEN (t.lease_owner IS NOT NULL)::integer
                                   ELSE 0 END AS crashes,
                  t.last_error, t.enqueued_at, t.concurrency_key, t.max_attempts, t.max_stalled,
                  t.retry_delay, t.timeout, t.keep
    ), letters AS (
        INSERT INTO flow_dead_letters AS d (task_id, queue, kind, run_id, payload, reason,
            last_error, attempts, crashes, enqueued_at, dead_at, policy)
        SELECT g.task_id, g.queue, g.kind, coalesce(g.run_id, h.run_id),
               CASE WHEN flow_is_token_kind(g.kind)
                    THEN flow_redacted_payload(g.payload, h.hook_id) ELSE g.payload END,
               coalesce(p_reason, format('lost %s workers while they worked on it', g.crashes)),
               g.last_error, g.attempts, g.crashes, g.enqueued_at, v_now,
               jsonb_strip_nulls(jsonb_build_object('priority', g.priority,
                   'concurrency_key', g.concurrency_key, 'max_attempts', g.max_attempts,
                   'max_stalled', g.max_stalled, 'retry_delay', g.retry_delay,
                   'timeout', g.timeout, 'keep', g.keep))
          FROM gone AS g
          LEFT JOIN LATERAL (
                SELECT f.run_id, f.hook_id FROM flow_active_hooks AS f
                 WHERE flow_is_token_kind(g.kind)
                   AND f.token = flow_json_get_text(g.payload, 'token')
                 LIMIT 1) AS h ON true
         WHERE g.kind <> 'drive_run'
            OR NOT flow_is_terminal((SELECT r.status FROM flow_runs AS r
                                      WHERE r.run_id = g.run_id))
        RETURNING d.task_id, d.dead_letter_id, d.kind, d.run_id, d.queue, d.crashes, d.reason
    ), blocked AS (
        UPDATE flow_runs AS r
           SET blocked_reason = l.reason, dead_letter_id = l.dead_letter_id,
               lease_epoch = r.lease_epoch + 1
          FROM letters AS l
         WHERE l.kind = 'drive_run' AND r.run_id = l.run_id
        RETURNING r.run_id
    )
    SELECT l.task_id, l.dead_letter_id, l.run_id, l.queue, l.crashes FROM letters AS l;
END
$$;

-- The payload of a task by token with the hook in place of the token.
CREATE FUNCTION flow_redacted_payload(p_payload json, p_hook_id text) RETURNS json
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT ('{"hook_id":' || coalesce(to_json(p_hook_id)::text, 'null')
            || coalesce(',"payload":' || flow_json_get(p_payload, 'payload')::text, '')
            || '}')::json
$$;

REVOKE EXECUTE ON FUNCTION flow_bury_tasks(bigint[], text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_redacted_payload(json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_bury_tasks(bigint[], text) IS 'Turns tasks into dead letters.';
COMMENT ON FUNCTION flow_redacted_payload(json, text)
    IS 'The payload of a task by token with the hook in place of the token.';

-- sql/types/flow_claim_candidate.sql
-- flow_claim_candidate: a task whose row a claim has locked, with what the claim decides by.
CREATE TYPE flow_claim_candidate AS (
    task_id bigint,
    run_id text COLLATE "C",
    kind text COLLATE "C",
    priority smallint,
    available_at timestamptz,
    concurrency_key text COLLATE "C",
    crashed boolean,
    is_dead boolean
);

COMMENT ON TYPE flow_claim_candidate IS 'A task whose row a claim has locked.';

-- sql/types/flow_claim_filter.sql
-- flow_claim_filter: which tasks a claim will take; null members let everything pass. takes is the
-- digest of workflows and kinds that names the marks of such claims, see flow_lanes.
CREATE TYPE flow_claim_filter AS (
    builds text[] COLLATE "C",
    accept_unpinned boolean,
    workflows text[] COLLATE "C",
    kinds text[] COLLATE "C",
    max_crashes integer,
    takes text COLLATE "C"
);

COMMENT ON TYPE flow_claim_filter IS 'Which tasks a claim will take.';

-- sql/functions/queue/flow_claim_candidates.sql
-- flow_claim_candidates: locks the rows of the next tasks of a queue that can be claimed.
-- Arguments: p_queue, p_limit, p_now; p_filter, what the claim takes; p_full_keys, concurrency keys
--   that have no slot left; p_seen, tasks that were looked at already.
-- Returns at most p_limit tasks in the order of claiming. Expired leases are found by an index of
--   their own. The ready ones are read lane by lane in index order, from the mark of the lane to
--   the present, so neither leased nor delayed tasks nor those of another build cost anything; nor
--   do, for long, those of workflows and kinds that such claims do not take.
--   is_dead: a lease of the task expired once too often.
-- Locks: queue rows, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_claim_candidates(
    p_queue text, p_limit integer, p_now timestamptz, p_filter flow_claim_filter,
    p_full_keys text[], p_seen bigint[]
) RETURNS SETOF flow_claim_candidate
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks flow_claim_candidate[];
    v_more flow_claim_candidate[];
    v_lane record;
    v_priority smallint;
    v_low timestamptz;
BEGIN
    SELECT m.low_water INTO v_low FROM flow_marks AS m WHERE m.name = p_queue AND m.takes = '';
    WITH expired AS MATERIALIZED (
        SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key,
               t.crashes + 1 > coalesce(t.max_stalled, p_filter.max_crashes, 2147483647) AS is_dead
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
           AND t.lease_expires_at >= coalesce(v_low, '-infinity')
           AND t.lease_expires_at <= p_now
           AND flow_claim_admits(p_filter, t.runtime_build, t.workflow_name, t.kind)
           AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (p_full_keys))
           AND t.task_id <> ALL (p_seen)
         ORDER BY t.lease_expires_at, t.task_id
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(ROW(e.task_id, e.run_id, e.kind, e.priority, e.available_at,
                         e.concurrency_key, true, e.is_dead)::flow_claim_candidate)
      INTO v_tasks FROM expired AS e;
    v_tasks := coalesce(v_tasks, '{}');

    FOR v_lane IN
        SELECT l.priority, l.runtime_build,
               greatest(min(l.low_water) FILTER (WHERE l.takes = ''),
                        min(l.low_water) FILTER (WHERE l.takes <> '')) AS low_water
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes IN ('', p_filter.takes)
           AND CASE WHEN l.runtime_build = '' THEN p_filter.accept_unpinned
                    ELSE p_filter.builds IS NULL OR l.runtime_build = ANY (p_filter.builds) END
         GROUP BY l.priority, l.runtime_build
         ORDER BY l.priority, l.runtime_build
    LOOP
        EXIT WHEN v_lane.priority <> v_priority AND cardinality(v_tasks) >= p_limit;
        v_priority := v_lane.priority;
        WITH ready AS MATERIALIZED (
            SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key
              FROM flow_tasks AS t
             WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_lane.priority
               AND t.runtime_build = v_lane.runtime_build
               AND t.available_at >= v_lane.low_water AND t.available_at <= p_now
               AND flow_claim_admits(p_filter, t.runtime_build, t.workflow_name, t.kind)
               AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (p_full_keys))
               AND t.task_id <> ALL (p_seen)
             ORDER BY t.available_at, t.task_id
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(ROW(r.task_id, r.run_id, r.kind, r.priority, r.available_at,
                             r.concurrency_key, false, false)::flow_claim_candidate)
          INTO v_more FROM ready AS r;
        v_tasks := v_tasks || coalesce(v_more, '{}');
    END LOOP;

    RETURN QUERY
    SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key, t.crashed,
           t.is_dead
      FROM unnest(v_tasks) AS t
     ORDER BY t.priority, t.available_at, t.task_id
     LIMIT p_limit;
END
$$;

-- Whether a claim takes tasks of this build, workflow and kind.
CREATE FUNCTION flow_claim_admits(
    p_filter flow_claim_filter, p_build text, p_workflow text, p_kind text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_build = '' THEN (p_filter).accept_unpinned
            ELSE (p_filter).builds IS NULL OR p_build = ANY ((p_filter).builds) END
   AND ((p_filter).workflows IS NULL OR p_workflow IS NULL
        OR p_workflow = ANY ((p_filter).workflows))
   AND ((p_filter).kinds IS NULL OR p_kind = ANY ((p_filter).kinds));

-- The same for the build of any.
CREATE FUNCTION flow_claim_takes(p_filter flow_claim_filter, p_workflow text, p_kind text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((p_filter).workflows IS NULL OR p_workflow IS NULL
        OR p_workflow = ANY ((p_filter).workflows))
   AND ((p_filter).kinds IS NULL OR p_kind = ANY ((p_filter).kinds));

-- Refuses a lease without an owner or of no length.
CREATE FUNCTION flow_check_lease(p_owner text, p_lease interval) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(btrim(p_owner), '') = '' THEN
        PERFORM flow_raise_argument('p_owner', 'it is blank');
    ELSIF p_lease IS NULL OR p_lease <= interval '0'
        OR p_lease > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_lease',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_candidates(
    text, integer, timestamptz, flow_claim_filter, text[], bigint[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_admits(flow_claim_filter, text, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_takes(flow_claim_filter, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_lease(text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_candidates(
    text, integer, timestamptz, flow_claim_filter, text[], bigint[])
    IS 'Locks the rows of the next tasks that can be claimed.';
COMMENT ON FUNCTION flow_claim_admits(flow_claim_filter, text, text, text)
    IS 'Whether a claim takes tasks of this build, workflow and kind.';
COMMENT ON FUNCTION flow_claim_takes(flow_claim_filter, text, text)
    IS 'Whether a claim takes tasks of this workflow and kind.';
COMMENT ON FUNCTION flow_check_lease(text, interval)
    IS 'Refuses a lease without an owner or of no length.';

-- sql/functions/queue/flow_move_claim_marks.sql
-- flow_move_claim_marks: moves the marks of the claims that name the same workflows and kinds, in
-- the lanes of a queue, up to the first task that they take. So what they do not take is read every
-- five seconds and not by every claim; less often where that takes long, as in flow_move_marks,
-- whose margins these are.
-- Marks that no claim has moved for an hour are forgotten: workers come with other code.
-- Arguments: p_queue, p_now, p_filter. Nothing is moved in a transaction that keeps one snapshot.
-- Locks: rows of flow_lanes and flow_marks, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_move_claim_marks(
    p_queue text, p_now timestamptz, p_filter flow_claim_filter
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    c_margin CONSTANT interval := '2 seconds';
    v_takes text := p_filter.takes;
    v_lane record;
    v_first timestamptz;
    v_sweeps boolean;
    v_began timestamptz;
BEGIN
    IF v_takes = '' OR flow_is_repeatable()
       OR NOT flow_mark_is_due(p_queue, p_now, c_margin, v_takes)
    THEN
        RETURN;
    END IF;
    -- whoever has this row moves all of these
    SELECT m.swept_at NOT BETWEEN p_now - m.sweep_every AND p_now INTO v_sweeps
      FROM flow_marks AS m
     WHERE m.name = p_queue AND m.takes = v_takes
       AND m.moved_at NOT BETWEEN p_now - c_margin AND p_now
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_began := flow_now();
    IF v_sweeps THEN
        INSERT INTO flow_lanes (queue, priority, runtime_build, takes)
        SELECT DISTINCT l.queue, l.priority, l.runtime_build, v_takes
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes = '' AND NOT EXISTS (
                SELECT FROM flow_lanes AS o
                 WHERE o.queue = p_queue AND o.priority = l.priority
                   AND o.runtime_build = l.runtime_build AND o.takes = v_takes);
        WITH old AS (
            DELETE FROM flow_marks AS m
                  USING (SELECT f.takes FROM flow_marks AS f
                          WHERE f.name = p_queue AND f.takes <> ''
                            AND f.moved_at < p_now - interval '1 hour' AND f.takes <> v_takes
                            FOR UPDATE SKIP LOCKED) AS o
                  WHERE m.name = p_queue AND m.takes = o.takes
            RETURNING m.takes
        )
        DELETE FROM flow_lanes AS l
              USING old AS o WHERE l.queue = p_queue AND l.takes = o.takes;
    END IF;
    FOR v_lane IN
        SELECT l.lane_id, l.priority, l.runtime_build, l.low_water
          FROM flow_lanes AS l
         WHERE l.queue = p_queue AND l.takes = v_takes FOR UPDATE SKIP LOCKED
    LOOP
        SELECT t.available_at INTO v_first
          FROM flow_tasks AS t
         WHERE t.queue = p_queue AND t.lease_owner IS NULL AND t.priority = v_lane.priority
           AND t.runtime_build = v_lane.runtime_build
           AND t.available_at >= CASE WHEN v_sweeps THEN '-infinity' ELSE v_lane.low_water END
           AND t.available_at <= p_now - c_margin
           AND flow_claim_takes(p_filter, t.workflow_name, t.kind)
         ORDER BY t.available_at LIMIT 1;
        UPDATE flow_lanes AS l
           SET low_water = coalesce(v_first, p_now - c_margin)
         WHERE l.lane_id = v_lane.lane_id;
    END LOOP;
    UPDATE flow_marks AS m
       SET moved_at = p_now,
           swept_at = CASE WHEN v_sweeps THEN p_now ELSE m.swept_at END,
           sweep_every = CASE WHEN v_sweeps
               THEN greatest(interval '5 seconds', 100 * (flow_now() - v_began))
               ELSE m.sweep_every END
     WHERE m.name = p_queue AND m.takes = v_takes;
END
$$;

-- The name of the marks of claims that take these workflows and kinds, null for all: a digest, for
-- the names of a worker's workflows may be long, and two that differ must not share a mark.
CREATE FUNCTION flow_claim_digest(p_workflows text[], p_kinds text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN p_workflows IS NULL AND p_kinds IS NULL THEN ''
            ELSE encode(sha256(convert_to(
                coalesce(p_workflows::text, '') || ' ' || coalesce(p_kinds::text, ''), 'UTF8')),
                'hex') END;

REVOKE EXECUTE ON FUNCTION flow_move_claim_marks(text, timestamptz, flow_claim_filter) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_digest(text[], text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_move_claim_marks(text, timestamptz, flow_claim_filter)
    IS 'Moves the marks of claims that name the same workflows and kinds.';
COMMENT ON FUNCTION flow_claim_digest(text[], text[])
    IS 'The name of the marks of claims that take these workflows and kinds.';

-- sql/functions/queue/flow_queue_room.sql
-- flow_queue_room: how many tasks of a queue may be claimed now.
-- Arguments: p_queue; p_limit, what the claim wants; p_now.
-- Returns room, 0 to p_limit; max_per_key, null without such a limit; keys and held, the live
--   leases of each concurrency key, when there is such a limit.
-- Slots are counted from live leases, so one whose holder died is free when its lease has expired.
--   The row of a queue with limits stays locked until the claim is committed: the next claim counts
--   what this one took. Meanwhile others pass the queue over.
-- Locks: the row of the queue, only when free. SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_queue_room(
    p_queue text, p_limit integer, p_now timestamptz,
    OUT room integer, OUT max_per_key integer, OUT keys text[], OUT held bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue record;
BEGIN
    room := p_limit;
    SELECT q.paused, q.max_running, q.max_per_key, q.rate_limit INTO v_queue
      FROM flow_queues AS q WHERE q.queue = p_queue;
    IF NOT FOUND THEN
        RETURN;
    ELSIF v_queue.paused THEN
        room := 0;
        RETURN;
    ELSIF v_queue.max_running IS NULL AND v_queue.max_per_key IS NULL
        AND v_queue.rate_limit IS NULL
    THEN
        RETURN;
    END IF;
    SELECT q.paused, q.max_running, q.max_per_key, q.rate_limit, q.rate_interval,
           q.rate_started_at, q.rate_used
      INTO v_queue
      FROM flow_queues AS q WHERE q.queue = p_queue FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR v_queue.paused THEN
        room := 0;
        RETURN;
    END IF;
    IF v_queue.rate_limit IS NOT NULL THEN
        room := least(room, v_queue.rate_limit - CASE
            WHEN p_now >= v_queue.rate_started_at + v_queue.rate_interval
                OR p_now < v_queue.rate_started_at THEN 0
            ELSE v_queue.rate_used END);
    END IF;
    IF v_queue.max_running IS NOT NULL THEN
        room := least(room, v_queue.max_running - (
            SELECT count(*) FROM flow_tasks AS t
             WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
               AND t.lease_expires_at > p_now)::integer);
    END IF;
    room := greatest(room, 0);
    max_per_key := v_queue.max_per_key;
    IF max_per_key IS NOT NULL AND room > 0 THEN
        SELECT array_agg(k.concurrency_key), array_agg(k.n) INTO keys, held
          FROM (SELECT t.concurrency_key, count(*) AS n
                  FROM flow_tasks AS t
                 WHERE t.queue = p_queue AND t.lease_owner IS NOT NULL
                   AND t.lease_expires_at > p_now AND t.concurrency_key IS NOT NULL
                 GROUP BY t.concurrency_key) AS k;
    END IF;
END
$$;

-- Counts claims against the rate of their queue; its row is locked by flow_queue_room.
CREATE FUNCTION flow_count_claims(p_queue text, p_count integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE flow_queues AS q
       SET rate_used = p_count + CASE
               WHEN p_now >= q.rate_started_at + q.rate_interval OR p_now < q.rate_started_at THEN 0
               ELSE q.rate_used END,
           rate_started_at = CASE
               WHEN p_now >= q.rate_started_at + q.rate_interval OR p_now < q.rate_started_at
               THEN p_now ELSE q.rate_started_at END
     WHERE q.queue = p_queue AND q.rate_limit IS NOT NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_queue_room(text, integer, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_count_claims(text, integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_queue_room(text, integer, timestamptz)
    IS 'How many tasks of a queue may be claimed now.';
COMMENT ON FUNCTION flow_count_claims(text, integer, timestamptz)
    IS 'Counts claims against the rate of their queue.';

-- sql/functions/queue/flow_claim_pick.sql
-- flow_claim_pick: picks and locks the next tasks of one queue for a claim.
-- Arguments: p_queue, p_limit, p_now, p_filter as in flow_claim_candidates.
-- Returns at most p_limit tasks, in the order of claiming. A run that is busy is passed over, so it
--   looks again until there is enough or nothing left. Tasks whose lease expired once too often
--   become dead letters on the way.
-- Locks: the row of the queue, queue rows and run locks, all only when free.
-- SQLSTATEs: none. Callers: internal.
CREATE FUNCTION flow_claim_pick(
    p_queue text, p_limit integer, p_now timestamptz, p_filter flow_claim_filter
) RETURNS SETOF flow_claim_candidate
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_room record;
    v_full text[] := '{}';
    v_found flow_claim_candidate[];
    v_taken flow_claim_candidate[] := '{}';
    v_seen bigint[] := '{}';
    v_locked text[];
    v_dead bigint[];
BEGIN
    SELECT r.room, r.max_per_key, coalesce(r.keys, '{}') AS keys, coalesce(r.held, '{}') AS held
      INTO v_room FROM flow_queue_room(p_queue, p_limit, p_now) AS r;
    IF v_room.room = 0 THEN
        RETURN;
    END IF;
    PERFORM flow_move_marks(p_queue, p_now);
    PERFORM FROM flow_marks AS m
      WHERE m.name = p_queue AND m.takes = p_filter.takes
        AND m.moved_at BETWEEN p_now - interval '2 seconds' AND p_now;
    IF NOT FOUND THEN
        PERFORM flow_move_claim_marks(p_queue, p_now, p_filter);
    END IF;
    LOOP
        IF v_room.max_per_key IS NOT NULL THEN
            SELECT coalesce(array_agg(k.key), '{}') INTO v_full
              FROM (SELECT h.key, sum(h.n) AS n
                      FROM (SELECT a.key, a.n FROM unnest(v_room.keys, v_room.held) AS a (key, n)
                            UNION ALL
                            SELECT c.concurrency_key, 1 FROM unnest(v_taken) AS c
                             WHERE c.concurrency_key IS NOT NULL) AS h
                     GROUP BY h.key) AS k
             WHERE k.n >= v_room.max_per_key;
        END IF;
        SELECT array_agg(c), array_agg(c.task_id) FILTER (WHERE c.is_dead),
               v_seen || array_agg(c.task_id)
          INTO v_found, v_dead, v_seen
          FROM flow_claim_candidates(p_queue, v_room.room - cardinality(v_taken), p_now, p_filter,
                                     v_full, v_seen) AS c;
        EXIT WHEN v_found IS NULL;
        v_locked := flow_try_lock_runs(ARRAY(
            SELECT f.run_id FROM unnest(v_found) AS f WHERE f.kind = 'drive_run'));
        IF v_dead IS NOT NULL THEN
            PERFORM flow_bury_tasks(ARRAY(
                SELECT f.task_id FROM unnest(v_found) AS f
                 WHERE f.is_dead AND (f.kind <> 'drive_run' OR f.run_id = ANY (v_locked))), NULL);
        END IF;
        v_taken := v_taken || ARRAY(
            SELECT k.candidate
              FROM (SELECT f AS candidate, f.concurrency_key, f.priority, f.available_at, f.task_id,
                           row_number() OVER (PARTITION BY f.concurrency_key
                               ORDER BY f.priority, f.available_at, f.task_id) AS n
                      FROM unnest(v_found) AS f
                     WHERE NOT f.is_dead
                       AND (f.kind <> 'drive_run' OR f.run_id = ANY (v_locked))) AS k
             WHERE v_room.max_per_key IS NULL OR k.concurrency_key IS NULL
                OR k.n + coalesce((SELECT sum(h.n)
                       FROM (SELECT a.n FROM unnest(v_room.keys, v_room.held) AS a (key, n)
                              WHERE a.key = k.concurrency_key
                              UNION ALL
                             SELECT 1 FROM unnest(v_taken) AS c
                              WHERE c.concurrency_key = k.concurrency_key) AS h), 0)
                   <= v_room.max_per_key
             ORDER BY k.priority, k.available_at, k.task_id);
        EXIT WHEN cardinality(v_taken) >= v_room.room;
    END LOOP;
    IF cardinality(v_taken) > 0 THEN
        PERFORM flow_count_claims(p_queue, cardinality(v_taken), p_now);
        RETURN QUERY
        SELECT t.task_id, t.run_id, t.kind, t.priority, t.available_at, t.concurrency_key,
               t.crashed, t.is_dead
          FROM unnest(v_taken) AS t;
    END IF;
END
$$;

-- Who holds, or held until it expired, the leases of these runs and tasks: two arrays, in step.
-- Looked up one by one: with an OR, a plan made while nothing was leased walks all leases.
CREATE FUNCTION flow_lease_holders(
    p_run_ids text[], p_task_ids bigint[], OUT tasks bigint[], OUT owners text[]
)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    SELECT array_agg(l.task_id), array_agg(l.lease_owner) INTO tasks, owners
      FROM (SELECT d.task_id, d.lease_owner
              FROM unnest(p_run_ids) AS u (run_id)
             CROSS JOIN LATERAL (
                    SELECT t.task_id, t.lease_owner FROM flow_tasks AS t
                     WHERE t.run_id = u.run_id AND t.kind = 'drive_run'
                       AND t.lease_expires_at IS NOT NULL LIMIT 1) AS d
            UNION ALL
            SELECT o.task_id, o.lease_owner
              FROM unnest(p_task_ids) AS u (task_id)
             CROSS JOIN LATERAL (
                    SELECT t.task_id, t.lease_owner FROM flow_tasks AS t
                     WHERE t.task_id = u.task_id AND t.lease_expires_at IS NOT NULL
                     LIMIT 1) AS o) AS l;
END
$$;

REVOKE EXECUTE ON FUNCTION
    flow_claim_pick(text, integer, timestamptz, flow_claim_filter) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_lease_holders(text[], bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_pick(text, integer, timestamptz, flow_claim_filter)
    IS 'Picks and locks the next tasks of one queue for a claim.';
COMMENT ON FUNCTION flow_lease_holders(text[], bigint[])
    IS 'Who holds the leases of these runs and tasks.';

-- sql/functions/queue/flow_claim_tasks.sql
-- flow_claim_tasks: takes leases of tasks that can be worked on.
--   flow_claim_tasks(queue, ...)    of one queue
--   flow_claim_tasks(queues, ...)   of several, looked at in an order that changes from call to
--   call
-- Arguments: p_queue or p_queues; p_limit, 1 to 1000, never exceeded; p_owner, who claims, shown to
--   operators; p_lease, how long the lease lasts without a heartbeat. What is taken: p_builds,
--   builds of pinned runs (null: any); p_accept_unpinned, runs of no build; p_workflows (null:
--   any); p_max_crashes, a task whose lease expired more often becomes a dead letter and its run is
--   blocked (null: never); p_kinds (null: all kinds).
-- A task can be claimed when it is available and nobody holds it, or its lease has expired, and its
--   queue is neither paused nor at its limits. Smaller priority first, then the oldest. Each claim
--   raises the fence: the run's lease epoch for drive_run, the task's for other kinds.
--   previous_owner is who held the lease that expired, null where nobody did.
-- Locks: rows of queues, queue rows and run locks, all only when free, so that a claim never waits;
--   then rows. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_claim_tasks(
    p_queues text[], p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3,
    p_kinds text[] DEFAULT '{drive_run}'
) RETURNS TABLE (
    task_id bigint, run_id text, kind text, payload json, epoch bigint, wakes bigint,
    attempts integer, head_sequence bigint, db_now timestamptz, crashes integer, queue text,
    workflow_name text, runtime_build text, timeout interval, max_attempts integer, last_error text,
    previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_filter flow_claim_filter;
    v_runs text[] := '{}'; v_others bigint[] := '{}';
    v_queue text;
    v_more_runs text[];
    v_more_others bigint[];
    v_crashed boolean := false;
    v_more_crashed boolean;
    v_lost bigint[]; v_losers text[];
    v_turn integer := floor(random() * coalesce(cardinality(p_queues), 0));
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_check_lease(p_owner, p_lease);
    v_filter := ROW(p_builds, coalesce(p_accept_unpinned, true), p_workflows, p_kinds,
                    p_max_crashes, flow_claim_digest(p_workflows, p_kinds))::flow_claim_filter;
    FOREACH v_queue IN ARRAY coalesce(p_queues[v_turn + 1:] || p_queues[:v_turn], '{}') LOOP
        SELECT coalesce(array_agg(c.run_id) FILTER (WHERE c.kind = 'drive_run'), '{}'),
               coalesce(array_agg(c.task_id) FILTER (WHERE c.kind <> 'drive_run'), '{}'),
               coalesce(bool_or(c.crashed), false)
          INTO v_more_runs, v_more_others, v_more_crashed
          FROM flow_claim_pick(v_queue, p_limit - cardinality(v_runs) - cardinality(v_others),
                               v_now, v_filter) AS c;
        v_runs := v_runs || v_more_runs;
        v_others := v_others || v_more_others;
        v_crashed := v_crashed OR v_more_crashed;
        EXIT WHEN cardinality(v_runs) + cardinality(v_others) >= p_limit;
    END LOOP;

    IF v_crashed THEN
        SELECT h.tasks, h.owners INTO v_lost, v_losers
          FROM flow_lease_holders(v_runs, v_others) AS h;
    END IF;
    IF cardinality(v_runs) > 0 THEN
        -- two statements: joined in one they are planned, while the tables are small, to compare
        -- every task with every run
        UPDATE flow_runs AS r
           SET lease_epoch = r.lease_epoch + 1
         WHERE r.run_id = ANY (v_runs);
        RETURN QUERY
        WITH leased AS (
            UPDATE flow_tasks AS t
               SET lease_owner = p_owner, lease_expires_at = v_now + p_lease,
                   epoch = (SELECT r.lease_epoch FROM flow_runs AS r WHERE r.run_id = t.run_id),
                   attempts = t.attempts + 1, missing_step = NULL,
                   crashes = t.crashes + (t.lease_owner IS NOT NULL)::integer
             WHERE t.run_id = ANY (v_runs) AND t.kind = 'drive_run'
            RETURNING t.task_id, t.run_id, t.kind, t.payload, t.epoch, t.wakes, t.attempts,
                      t.priority, t.available_at, t.crashes, t.queue, t.workflow_name,
                      t.runtime_build, t.timeout, t.max_attempts, t.last_error
        )
        SELECT l.task_id, l.run_id, l.kind, l.payload, l.epoch, l.wakes, l.attempts,
               r.head_sequence, v_now, l.crashes, l.queue, l.workflow_name,
               nullif(l.runtime_build, ''), l.timeout, l.max_attempts, l.last_error,
               v_losers[array_position(v_lost, l.task_id)]
          FROM leased AS l
         CROSS JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                              WHERE f.run_id = l.run_id LIMIT 1) AS r
         ORDER BY l.priority, l.available_at, l.task_id;
    END IF;
    IF cardinality(v_others) > 0 THEN
        RETURN QUERY
        WITH leased AS (
            UPDATE flow_tasks AS t
               SET lease_owner = p_owner, lease_expires_at = v_now + p_lease,
                   epoch = coalesce(t.epoch, 0) + 1, wakes = 1, attempts = t.attempts + 1,
                   crashes = t.crashes + (t.lease_owner IS NOT NULL)::integer
             WHERE t.task_id = ANY (v_others)
            RETURNING t.task_id, t.run_id, t.kind, t.payload, t.epoch, t.wakes, t.attempts,
                      t.priority, t.available_at, t.crashes, t.queue, t.workflow_name,
                      t.runtime_build, t.timeout, t.max_attempts, t.last_error
        )
        SELECT l.task_id, l.run_id, l.kind, l.payload, l.epoch, l.wakes, l.attempts,
               coalesce(r.head_sequence, 0), v_now, l.crashes, l.queue, l.workflow_name,
               nullif(l.runtime_build, ''), l.timeout, l.max_attempts, l.last_error,
               v_losers[array_position(v_lost, l.task_id)]
          FROM leased AS l
          LEFT JOIN LATERAL (SELECT f.head_sequence FROM flow_runs AS f
                              WHERE f.run_id = l.run_id LIMIT 1) AS r ON true
         ORDER BY l.priority, l.available_at, l.task_id;
    END IF;
END
$$;

CREATE FUNCTION flow_claim_tasks(
    p_queue text, p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3,
    p_kinds text[] DEFAULT '{drive_run}'
) RETURNS TABLE (
    task_id bigint, run_id text, kind text, payload json, epoch bigint, wakes bigint,
    attempts integer, head_sequence bigint, db_now timestamptz, crashes integer, queue text,
    workflow_name text, runtime_build text, timeout interval, max_attempts integer, last_error text,
    previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT c.task_id, c.run_id, c.kind, c.payload, c.epoch, c.wakes, c.attempts, c.head_sequence,
           c.db_now, c.crashes, c.queue, c.workflow_name, c.runtime_build, c.timeout,
           c.max_attempts, c.last_error, c.previous_owner
      FROM flow_claim_tasks(ARRAY[p_queue], p_limit, p_owner, p_lease, p_builds,
                            p_accept_unpinned, p_workflows, p_max_crashes, p_kinds) AS c;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_tasks(text[], integer, text, interval, text[], boolean,
    text[], integer, text[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_claim_tasks(text, integer, text, interval, text[], boolean,
    text[], integer, text[]) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_tasks(text[], integer, text, interval, text[], boolean, text[],
    integer, text[]) IS 'Takes leases of tasks of several queues.';
COMMENT ON FUNCTION flow_claim_tasks(text, integer, text, interval, text[], boolean, text[],
    integer, text[]) IS 'Takes leases of tasks of one queue.';

-- sql/functions/queue/flow_claim_runs.sql
-- flow_claim_runs: takes leases of runs of some queues, and reads the short histories, those of new
--   runs first of all, in the same call.
-- Arguments: p_queues to p_max_crashes as in flow_claim_tasks; p_events, the longest history that
--   is read: others are left to flow_load_runs; p_due, make work of what is due first, as
--   flow_enqueue_due does: a worker with nothing to do looks at both in one transaction.
-- Returns one row a run, as flow_claim_tasks orders them; db_now as events write times; status and
--   events as flow_load_runs returns them, both null for a longer history;
--   previous_owner is who held the lease that expired, null where nobody did.
-- The histories are read by a statement of its own, under the run locks of the claim: each ends at
--   the head that was claimed. If they cannot be read, the claim stands, and all of them are null:
--   one broken row must not keep its neighbours from being driven.
-- Locks and SQLSTATEs: as flow_claim_tasks, and before them those of flow_enqueue_due.
-- Callers: worker.
CREATE FUNCTION flow_claim_runs(
    p_queues text[], p_limit integer, p_owner text, p_lease interval,
    p_builds text[] DEFAULT NULL, p_accept_unpinned boolean DEFAULT true,
    p_workflows text[] DEFAULT NULL, p_max_crashes integer DEFAULT 3, p_events bigint DEFAULT 8,
    p_due boolean DEFAULT false
) RETURNS TABLE (
    run_id text, epoch bigint, wakes bigint, head_sequence bigint, db_now text, task_id bigint,
    attempts integer, status text, events text, previous_owner text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_mergejoin = off SET jit = off
-- planned again for each call, a single run would cost twice as much
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_wakes bigint[];
    v_heads bigint[];
    v_tasks bigint[];
    v_attempts integer[];
    v_owners text[];
    v_short text[];
    v_read text[];
    v_statuses text[];
    v_events text[];
    v_now text;
BEGIN
    IF p_due THEN
        PERFORM FROM flow_enqueue_due();
    END IF;
    SELECT array_agg(c.run_id), array_agg(c.epoch), array_agg(c.wakes), array_agg(c.head_sequence),
           array_agg(c.task_id), array_agg(c.attempts), array_agg(c.previous_owner),
           array_agg(c.run_id) FILTER (WHERE c.head_sequence <= p_events),
           flow_time_text(min(c.db_now))
      INTO v_runs, v_epochs, v_wakes, v_heads, v_tasks, v_attempts, v_owners, v_short,
           v_now
      FROM flow_claim_tasks(p_queues, p_limit, p_owner, p_lease, p_builds, p_accept_unpinned,
                            p_workflows, p_max_crashes) AS c;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    IF v_short IS NOT NULL THEN
        BEGIN
            SELECT array_agg(l.run_id), array_agg(l.status), array_agg(l.events)
              INTO v_read, v_statuses, v_events
              FROM flow_load_runs(v_short) AS l;
        EXCEPTION WHEN others THEN
            v_read := NULL;
        END;
    END IF;
    RETURN QUERY
    SELECT u.run_id, u.epoch, u.wakes, u.head_sequence, v_now, u.task_id, u.attempts, l.status,
           l.events, u.previous_owner
      FROM unnest(v_runs, v_epochs, v_wakes, v_heads, v_tasks, v_attempts, v_owners)
           WITH ORDINALITY AS u (run_id, epoch, wakes, head_sequence, task_id, attempts,
                                 previous_owner, place)
      LEFT JOIN unnest(v_read, v_statuses, v_events) AS l (run_id, status, events)
             ON l.run_id = u.run_id
     ORDER BY u.place;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_claim_runs(text[], integer, text, interval, text[], boolean, text[],
    integer, bigint, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_claim_runs(text[], integer, text, interval, text[], boolean, text[],
    integer, bigint, boolean)
    IS 'Takes leases of runs of some queues and reads the short histories.';

-- sql/functions/queue/flow_acquire_run.sql
-- flow_acquire_run: takes the lease of one run, whether or not it has a task.
-- Arguments: p_run_id; p_owner, who takes it; p_lease, how long it lasts without a heartbeat.
-- Returns one row, or none when somebody else holds a live lease or the run has ended. The same
--   owner may take its own lease again; the older epoch is lost then. It is also how somebody
--   drives a run whose drive task is a dead letter.
-- Locks, in order: retention guard (shared), run lock, row, queue row.
-- SQLSTATEs: WF001, WF010, WF013. Callers: worker.
CREATE FUNCTION flow_acquire_run(p_run_id text, p_owner text, p_lease interval)
RETURNS TABLE (epoch bigint, wakes bigint, head_sequence bigint, db_now timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_run record;
    v_task record;
    v_now timestamptz;
BEGIN
    PERFORM flow_check_lease(p_owner, p_lease);
    SELECT o.status, o.head_sequence INTO v_run FROM flow_open_run(p_run_id, '{}') AS o;
    IF flow_is_terminal(v_run.status) THEN
        RETURN;
    END IF;
    SELECT t.lease_owner, t.lease_expires_at INTO v_task
      FROM flow_tasks AS t WHERE t.run_id = p_run_id AND t.kind = 'drive_run' FOR UPDATE;
    v_now := flow_now();
    IF NOT FOUND THEN
        PERFORM flow_enqueue_drives(ARRAY[p_run_id], true);
    ELSIF v_task.lease_owner <> p_owner AND v_task.lease_expires_at > v_now THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH fenced AS (
        UPDATE flow_runs AS r
           SET lease_epoch = r.lease_epoch + 1
         WHERE r.run_id = p_run_id
        RETURNING r.run_id, r.lease_epoch
    )
    UPDATE flow_tasks AS t
       SET lease_owner = p_owner, lease_expires_at = v_now + p_lease, epoch = f.lease_epoch,
           crashes = t.crashes + coalesce(t.lease_owner <> p_owner, false)::integer,
           missing_step = NULL
      FROM fenced AS f
     WHERE t.run_id = f.run_id AND t.kind = 'drive_run'
    RETURNING t.epoch, t.wakes, v_run.head_sequence, v_now;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_acquire_run(text, text, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_acquire_run(text, text, interval) IS 'Takes the lease of one run.';

-- sql/functions/queue/flow_heartbeat.sql
-- flow_heartbeat: extends leases, all those of a process in one call.
-- Arguments: p_leases, a JSON array of {"run_id", "epoch"} or, for tasks of other kinds,
--   {"task_id", "epoch"}; p_lease, how long from now.
-- Returns one row a lease, in order: held, the wake count and head of the run now. A lease that
--   expired but was not taken by anybody is still held. A row that another transaction is changing
--   right now is not waited for: nobody can take that lease meanwhile, and the next heartbeat
--   extends it.
-- Locks: queue rows, only when free. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_heartbeat(p_leases json, p_lease interval)
RETURNS TABLE (
    run_id text, held boolean, wakes bigint, head_sequence bigint, task_id bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_runs text[];
    v_epochs bigint[];
    v_tasks bigint[];
    v_until timestamptz;
BEGIN
    IF p_lease IS NULL OR p_lease <= interval '0' OR p_lease > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_lease',
            'it must be longer than nothing, and at most 1000 years');
    END IF;
    v_until := flow_now() + p_lease;
    BEGIN
        SELECT array_agg(l.run_id), array_agg(l.epoch), array_agg(l.task_id)
          INTO v_runs, v_epochs, v_tasks
          FROM json_to_recordset(p_leases) AS l (run_id text, epoch bigint, task_id bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_leases', 'it must be an array of {"run_id", "epoch"}');
    END;
    WITH mine AS MATERIALIZED (
        -- one lookup a lease: as a join it is planned, while the table is small, to compare every
        -- task with every lease
        SELECT o.task_id
          FROM unnest(v_runs, v_epochs) AS l (run_id, epoch)
         CROSS JOIN LATERAL (
                SELECT t.task_id
                  FROM flow_tasks AS t
                 WHERE t.run_id = l.run_id AND t.kind = 'drive_run'
                   AND t.epoch = l.epoch AND t.lease_expires_at IS NOT NULL
                   FOR UPDATE SKIP LOCKED) AS o
    )
    UPDATE flow_tasks AS t
       SET lease_expires_at = v_until
     WHERE t.task_id = ANY (ARRAY(SELECT m.task_id FROM mine AS m));
    WITH mine AS MATERIALIZED (
        SELECT o.task_id
          FROM unnest(v_tasks, v_epochs) AS l (task_id, epoch)
         CROSS JOIN LATERAL (
                SELECT t.task_id
                  FROM flow_tasks AS t
                 WHERE t.task_id = l.task_id AND t.kind <> 'drive_run'
                   AND t.epoch = l.epoch AND t.lease_expires_at IS NOT NULL
                   FOR UPDATE SKIP LOCKED) AS o
    )
    UPDATE flow_tasks AS t
       SET lease_expires_at = v_until
     WHERE t.task_id = ANY (ARRAY(SELECT m.task_id FROM mine AS m));
    RETURN QUERY
    SELECT l.run_id, coalesce(t.epoch = l.epoch AND t.lease_owner IS NOT NULL, false),
           coalesce(t.wakes, 0), coalesce(r.head_sequence, 0), coalesce(l.task_id, t.task_id)
      FROM unnest(v_runs, v_epochs, v_tasks) WITH ORDINALITY AS l (run_id, epoch, task_id, n)
      LEFT JOIN LATERAL (
            (SELECT f.epoch, f.lease_owner, f.wakes, f.task_id FROM flow_tasks AS f
              WHERE f.run_id = l.run_id AND f.kind = 'drive_run' LIMIT 1)
            UNION ALL
            (SELECT f.epoch, f.lease_owner, f.wakes, f.task_id FROM flow_tasks AS f
              WHERE l.run_id IS NULL AND f.task_id = l.task_id LIMIT 1)) AS t ON true
      LEFT JOIN LATERAL (
            SELECT f.head_sequence FROM flow_runs AS f
             WHERE f.run_id = l.run_id LIMIT 1) AS r ON true
     ORDER BY l.n;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_heartbeat(json, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_heartbeat(json, interval) IS 'Extends leases.';

-- sql/functions/queue/flow_release_run.sql
-- flow_release_run: gives the lease of a run back because there is nothing left to do.
-- Arguments: p_run_id; p_epoch, of the lease; p_wakes, the wake count its holder has seen.
-- Returns true when the task is gone, also when it is asked again. False: the run was woken
--   meanwhile and the lease stays (look again), or the lease is not held any more. A run that has
--   ended is always released.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: none.
-- Callers: worker.
CREATE FUNCTION flow_release_run(p_run_id text, p_epoch bigint, p_wakes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_released boolean;
BEGIN
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    SELECT r.released INTO v_released
      FROM flow_release(ARRAY[p_run_id], ARRAY[p_epoch], ARRAY[p_wakes]) AS r;
    RETURN v_released;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_run(text, bigint, bigint) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_run(text, bigint, bigint)
    IS 'Gives the lease of a run back because there is nothing left to do.';

-- sql/functions/queue/flow_give_back.sql
-- flow_give_back: gives the lease of a run up with work left, for somebody else to take.
-- Arguments: p_run_id; p_epoch, of the lease; p_delay, how long nobody shall take it; a
--   p_blocked_reason that is not null marks the run as blocked, until its next append or release;
--   p_missing_step, the step that is not known here, where that is the reason; p_unused, whether
--   the attempt was not used and is not counted (flow_release_tasks counts none).
-- Returns false, and does nothing, when the lease is not held under this epoch.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_give_back(
    p_run_id text, p_epoch bigint, p_delay interval DEFAULT '0', p_blocked_reason text DEFAULT NULL,
    p_missing_step text DEFAULT NULL, p_unused boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_queue text;
BEGIN
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    UPDATE flow_tasks AS t
       SET lease_owner = NULL, lease_expires_at = NULL,
           available_at = flow_now() + greatest(coalesce(p_delay, '0'), '0'),
           missing_step = p_missing_step,
           attempts = greatest(t.attempts - coalesce(p_unused, false)::integer, 0)
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run' AND t.epoch = p_epoch
       AND t.lease_expires_at IS NOT NULL
    RETURNING t.queue INTO v_queue;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF coalesce(p_delay, '0') <= '0' THEN
        PERFORM flow_notify_idle(ARRAY[v_queue]);
    END IF;
    IF p_blocked_reason IS NOT NULL THEN
        UPDATE flow_runs AS r SET blocked_reason = p_blocked_reason WHERE r.run_id = p_run_id;
    END IF;
    RETURN true;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_give_back(text, bigint, interval, text, text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_give_back(text, bigint, interval, text, text, boolean)
    IS 'Gives the lease of a run up with work left.';

-- sql/functions/queue/flow_wake_run.sql
-- flow_wake_run: asks for a run to be looked at.
-- Arguments: p_run_id. Returns whether the run was woken; one that has ended is not.
-- Locks, in order: retention guard (shared), run lock, queue row. SQLSTATEs: WF001, WF013.
-- Callers: client, worker.
CREATE FUNCTION flow_wake_run(p_run_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_status text;
BEGIN
    SELECT o.status INTO v_status FROM flow_open_run(p_run_id, '{}') AS o;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN NOT flow_is_terminal(v_status);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_wake_run(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_wake_run(text) IS 'Asks for a run to be looked at.';

-- sql/functions/queue/flow_enqueue_task.sql
-- flow_enqueue_task: makes a task that carries out one verb later, or drives a run.
-- Arguments: p_kind and p_payload:
--   drive_run; resume_scheduled_run;
--   resume_wait {"wait_id"}; resume_hook {"hook_id", "payload"}; dispose_hook {"hook_id"}: with
--   p_run_id; resume_hook_by_token {"token", "payload"}; dispose_hook_by_token {"token"};
--   resume_due_waits; resume_due_retries: without p_run_id.
--   p_queue; p_priority, smaller first; p_delay until it can be claimed. p_dedupe_mode: off;
--   until_terminal: not made while one for the same target is open; until_terminal_or_ttl: or made
--   within p_dedupe_ttl; keep_latest: its payload replaces that of the open one, which is carried
--   out once more when it is at work. p_max_attempts, failures until it is a dead letter;
--   p_retry_delay, doubled with each failure; p_timeout of one attempt; p_concurrency_key;
--   p_max_stalled, crashes until it is a dead letter (null: what the claim says); p_keep, a line in
--   flow_finished_tasks.
-- Returns task_id, and enqueued: false when an open task took it in. drive_run has one task a run
--   whatever is said, as flow_wake_run; it has no payload and no other options.
-- Locks: for drive_run as flow_wake_run; else the queue row of an open task of the same target.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_enqueue_task(
    p_kind text, p_payload json DEFAULT NULL, p_queue text DEFAULT 'default',
    p_run_id text DEFAULT NULL, p_priority smallint DEFAULT 0::smallint,
    p_delay interval DEFAULT '0', p_dedupe_mode text DEFAULT 'off',
    p_dedupe_ttl interval DEFAULT NULL, p_max_attempts integer DEFAULT 1,
    p_retry_delay interval DEFAULT NULL, p_timeout interval DEFAULT NULL,
    p_concurrency_key text DEFAULT NULL, p_max_stalled integer DEFAULT NULL,
    p_keep boolean DEFAULT false
) RETURNS TABLE (task_id bigint, enqueued boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_key text;
    v_run record;
BEGIN
    PERFORM flow_check_task(p_kind, p_payload, p_queue, p_run_id, p_dedupe_mode, p_dedupe_ttl,
                            p_max_attempts, p_retry_delay, p_timeout, p_max_stalled);
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    IF p_kind = 'drive_run' THEN
        PERFORM flow_wake_run(p_run_id);
        RETURN QUERY
        SELECT t.task_id, t.wakes = 1 AND t.lease_owner IS NULL
          FROM flow_tasks AS t WHERE t.run_id = p_run_id AND t.kind = 'drive_run';
        RETURN;
    END IF;
    SELECT r.runtime_build, r.workflow_name INTO v_run
      FROM flow_runs AS r WHERE r.run_id = p_run_id AND r.head_sequence > 0;
    IF NOT FOUND AND p_run_id IS NOT NULL THEN
        PERFORM flow_raise_not_found(p_run_id);
    END IF;
    v_now := flow_now();
    IF p_dedupe_mode <> 'off' THEN
        v_key := flow_dedupe_key(p_kind, p_run_id, p_payload);
        -- one whose time is over no longer stands in the way
        UPDATE flow_tasks AS t SET dedupe_key = NULL
         WHERE t.dedupe_key = v_key AND t.dedupe_until <= v_now;
    END IF;
    RETURN QUERY
    INSERT INTO flow_tasks AS t (queue, run_id, kind, payload, priority, available_at, enqueued_at,
        runtime_build, workflow_name, concurrency_key, dedupe_key, dedupe_until, max_attempts,
        max_stalled, retry_delay, timeout, keep)
    VALUES (p_queue, p_run_id, p_kind, p_payload, coalesce(p_priority, 0),
        v_now + greatest(coalesce(p_delay, '0'), '0'), v_now, coalesce(v_run.runtime_build, ''),
        v_run.workflow_name, p_concurrency_key, v_key,
        CASE WHEN p_dedupe_mode = 'until_terminal_or_ttl' THEN v_now + p_dedupe_ttl END,
        p_max_attempts, p_max_stalled, p_retry_delay, p_timeout, coalesce(p_keep, false))
        ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL DO UPDATE
       SET wakes = t.wakes + 1,
           payload = CASE WHEN p_dedupe_mode = 'keep_latest' THEN excluded.payload
                          ELSE t.payload END
     WHERE p_dedupe_mode = 'keep_latest'
    RETURNING t.task_id, t.wakes = 1;
    IF FOUND THEN
        PERFORM flow_notify_idle(ARRAY[p_queue]);
    ELSE
        RETURN QUERY
        SELECT t.task_id, false FROM flow_tasks AS t WHERE t.dedupe_key = v_key;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_task(text, json, text, text, smallint, interval, text,
    interval, integer, interval, interval, text, integer, boolean) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_task(text, json, text, text, smallint, interval, text, interval,
    integer, interval, interval, text, integer, boolean)
    IS 'Makes a task that carries out one verb later.';

-- sql/functions/client/flow_set_run_priority.sql
-- flow_set_run_priority: says when a run is taken before others, and with which it shares a limit.
-- Call it in the transaction that starts the run, or at any time later.
-- Arguments: p_run_id; p_priority of its drive tasks, smaller is claimed first; p_concurrency_key,
--   runs of one key share flow_queues.max_per_key of their queue, null for none.
-- Nothing is written to the history. A run that is at work is not interrupted.
-- Returns whether the run is still open.
-- Locks, in order: retention guard (shared), run lock, row, queue row.
-- SQLSTATEs: WF001, WF010, WF013. Callers: client, worker.
CREATE FUNCTION flow_set_run_priority(
    p_run_id text, p_priority smallint DEFAULT 0::smallint, p_concurrency_key text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_status text;
BEGIN
    IF octet_length(p_concurrency_key) > 1024 OR btrim(p_concurrency_key) = '' THEN
        PERFORM flow_raise_argument('p_concurrency_key', 'it must be 1 to 1024 bytes, not blank');
    END IF;
    SELECT o.status INTO v_status FROM flow_open_run(p_run_id, '{}') AS o;
    UPDATE flow_runs AS r
       SET priority = coalesce(p_priority, 0), concurrency_key = p_concurrency_key
     WHERE r.run_id = p_run_id;
    UPDATE flow_tasks AS t
       SET priority = coalesce(p_priority, 0), concurrency_key = p_concurrency_key
     WHERE t.run_id = p_run_id AND t.kind = 'drive_run';
    RETURN NOT flow_is_terminal(v_status);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_set_run_priority(text, smallint, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_set_run_priority(text, smallint, text)
    IS 'Says when a run is taken before others, and with which it shares a limit.';

-- sql/functions/queue/flow_complete_tasks.sql
-- flow_complete_tasks: says how tasks ended; for all kinds but drive_run, which is released.
-- Arguments: p_done, a JSON array of {"task_id", "epoch", "ok", "error"?: text without tokens and
--   payloads, "retry_delay"?: interval, "dead"?: true for a failure that no retry can cure}.
-- Returns one row an element, in order, with its outcome:
--   done        it is removed, with a line in flow_finished_tasks when it is to be kept
--   again       its payload was replaced meanwhile: it can be claimed once more
--   retry       it failed and can be claimed again after its delay: the one given, or its own
--               doubled with each failure, at most an hour
--   dead        it failed once too often and is a dead letter
--   lease_lost  somebody else holds it, or nobody: nothing was changed
--   gone        it is not there (any more): completed before, or removed
-- Lost workers are no failures: those of them are counted apart.
-- Locks: queue rows, by task. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_complete_tasks(p_done json)
RETURNS TABLE (task_id bigint, outcome text, dead_letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_done record;
    v_task record;
    v_failures integer;
BEGIN
    BEGIN
        PERFORM FROM json_to_recordset(p_done) AS d (task_id bigint, epoch bigint, ok boolean,
            error text, retry_delay interval, dead boolean);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_done', 'it must be an array of {"task_id", "epoch", "ok"}');
    END;
    -- in one order, whatever order they come in
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id IN (SELECT d.task_id FROM json_to_recordset(p_done) AS d (task_id bigint))
        AND t.kind <> 'drive_run'
      ORDER BY t.task_id
        FOR UPDATE;
    FOR v_done IN
        SELECT d.task_id, d.epoch, coalesce(d.ok, false) AS ok, left(d.error, 2000) AS error,
               d.retry_delay, coalesce(d.dead, false) AS dead
          FROM json_to_recordset(p_done) AS d (task_id bigint, epoch bigint, ok boolean,
               error text, retry_delay interval, dead boolean)
    LOOP
        task_id := v_done.task_id;
        dead_letter_id := NULL;
        SELECT t.epoch, t.lease_owner, t.wakes, t.attempts, t.crashes, t.max_attempts,
               t.retry_delay, t.keep, t.queue
          INTO v_task
          FROM flow_tasks AS t WHERE t.task_id = v_done.task_id AND t.kind <> 'drive_run';
        v_failures := greatest(v_task.attempts - v_task.crashes, 1);
        IF NOT FOUND THEN
            outcome := 'gone';
        ELSIF v_task.lease_owner IS NULL OR v_task.epoch IS DISTINCT FROM v_done.epoch THEN
            outcome := 'lease_lost';
        ELSIF v_done.ok AND v_task.wakes > 1 THEN
            outcome := 'again';
            UPDATE flow_tasks AS t
               SET lease_owner = NULL, lease_expires_at = NULL, available_at = v_now,
                   attempts = 0, crashes = 0, last_error = NULL
             WHERE t.task_id = v_done.task_id;
        ELSIF v_done.ok THEN
            outcome := 'done';
            INSERT INTO flow_finished_tasks (task_id, queue, kind, run_id, attempts, crashes,
                enqueued_at, finished_at)
            SELECT t.task_id, t.queue, t.kind, t.run_id, t.attempts, t.crashes, t.enqueued_at, v_now
              FROM flow_tasks AS t WHERE t.task_id = v_done.task_id AND t.keep;
            DELETE FROM flow_tasks AS t WHERE t.task_id = v_done.task_id;
        ELSIF v_done.dead OR v_failures >= coalesce(v_task.max_attempts, 1) THEN
            outcome := 'dead';
            UPDATE flow_tasks AS t SET last_error = v_done.error
             WHERE t.task_id = v_done.task_id;
            SELECT b.dead_letter_id INTO dead_letter_id
              FROM flow_bury_tasks(ARRAY[v_done.task_id],
                                   format('failed %s times', v_failures)) AS b;
        ELSE
            outcome := 'retry';
            UPDATE flow_tasks AS t
               SET lease_owner = NULL, lease_expires_at = NULL, last_error = v_done.error,
                   available_at = v_now + greatest('0', CASE
                       WHEN v_done.retry_delay IS NOT NULL
                           THEN least(v_done.retry_delay, interval '1000 years')
                       -- doubled, a delay of years would lead out of the calendar
                       WHEN v_task.retry_delay >= '1 hour' THEN v_task.retry_delay
                       ELSE least(interval '1 hour', coalesce(v_task.retry_delay, '0')
                                                     * power(2, least(v_failures - 1, 30)))
                   END)
             WHERE t.task_id = v_done.task_id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_complete_tasks(json) FROM PUBLIC;
COMMENT ON FUNCTION flow_complete_tasks(json) IS 'Says how tasks ended.';

-- sql/functions/queue/flow_release_tasks.sql
-- flow_release_tasks: gives leases back at once with the work left, as a worker that stops does.
-- Arguments: p_tasks, a JSON array of {"task_id", "epoch"}, of any kind; p_delay, how long nobody
--   shall take them. The attempt that was not used is not counted, nor is it a crash.
-- Returns one row an element, in order: whether the lease was held and is given back. A run that is
--   busy right now is not waited for, or one client that takes its time would keep all others: its
--   lease is not given back by this call (flow_give_back waits).
-- Locks, in order: retention guard (shared), run locks if free, queue rows by run and task.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_release_tasks(p_tasks json, p_delay interval DEFAULT '0')
RETURNS TABLE (task_id bigint, released boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_epochs bigint[];
    v_free text[];
    v_mine bigint[];
    v_done bigint[];
    v_queues text[];
BEGIN
    IF p_delay > interval '1000 years' THEN
        PERFORM flow_raise_argument('p_delay', 'it must be at most 1000 years');
    END IF;
    BEGIN
        SELECT array_agg(l.task_id), array_agg(l.epoch) INTO v_tasks, v_epochs
          FROM json_to_recordset(p_tasks) AS l (task_id bigint, epoch bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_tasks', 'it must be an array of {"task_id", "epoch"}');
    END;
    v_free := flow_try_lock_runs(ARRAY(
        SELECT t.run_id FROM flow_tasks AS t
         WHERE t.task_id = ANY (v_tasks) AND t.kind = 'drive_run' ORDER BY t.run_id));
    v_mine := ARRAY(
        SELECT t.task_id FROM flow_tasks AS t
         WHERE t.task_id = ANY (v_tasks)
           AND (t.kind <> 'drive_run' OR t.run_id = ANY (v_free))
         ORDER BY t.run_id, t.task_id
           FOR UPDATE);
    WITH back AS (
        UPDATE flow_tasks AS t
           SET lease_owner = NULL, lease_expires_at = NULL,
               available_at = flow_now() + greatest(coalesce(p_delay, '0'), '0'),
               attempts = greatest(t.attempts - 1, 0)
         WHERE t.task_id = ANY (v_mine) AND t.lease_expires_at IS NOT NULL
           AND t.epoch = v_epochs[array_position(v_tasks, t.task_id)]
        RETURNING t.task_id, t.queue
    )
    SELECT array_agg(b.task_id), array_agg(DISTINCT b.queue) INTO v_done, v_queues FROM back AS b;
    IF v_queues IS NOT NULL THEN
        PERFORM flow_notify_idle(v_queues);
    END IF;
    RETURN QUERY
    SELECT l.task_id, coalesce(l.task_id = ANY (v_done), false)
      FROM unnest(v_tasks) WITH ORDINALITY AS l (task_id, n)
     ORDER BY l.n;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_tasks(json, interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_tasks(json, interval)
    IS 'Gives leases back at once with the work left.';

-- sql/functions/queue/flow_requeue_expired.sql
-- flow_requeue_expired: takes tasks from holders whose lease has expired, without claiming them.
-- A claim does the same for what it takes; this is for queues that nobody claims from, and to see
--   what was lost. Each is counted as a crash; one that crashed more often than p_max_crashes (or
--   its own limit) becomes a dead letter.
-- Arguments: p_limit, 1 to 1000; p_max_crashes, null for no limit; p_queue, null for all.
-- Returns one row a task: its crashes so far, and the dead letter that it became, if it did.
-- Locks: queue rows and run locks, only when free, so that it never waits; then rows.
-- SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_requeue_expired(
    p_limit integer DEFAULT 1000, p_max_crashes integer DEFAULT 3, p_queue text DEFAULT NULL
) RETURNS TABLE (task_id bigint, run_id text, queue text, crashes integer, dead_letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := flow_now();
    v_queue text;
    v_found flow_claim_candidate[];
    v_locked text[];
    v_left integer := p_limit;
    v_queues text[];
BEGIN
    PERFORM flow_check_limit(p_limit);
    v_queues := CASE WHEN p_queue IS NOT NULL THEN ARRAY[p_queue]
                     ELSE ARRAY(SELECT DISTINCT l.queue FROM flow_lanes AS l) END;
    FOREACH v_queue IN ARRAY v_queues LOOP
        EXIT WHEN v_left <= 0;
        WITH expired AS MATERIALIZED (
            SELECT t.task_id, t.run_id, t.kind, t.crashes + 1
                       > coalesce(t.max_stalled, p_max_crashes, 2147483647) AS is_dead
              FROM flow_tasks AS t
             WHERE t.queue = v_queue AND t.lease_owner IS NOT NULL AND t.lease_expires_at <= v_now
               AND t.lease_expires_at >= coalesce((SELECT m.low_water FROM flow_marks AS m
                                                    WHERE m.name = v_queue AND m.takes = ''),
                                               '-infinity')
             ORDER BY t.lease_expires_at, t.task_id
             LIMIT v_left
               FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(ROW(e.task_id, e.run_id, e.kind, 0, v_now, NULL, true,
                             e.is_dead)::flow_claim_candidate)
          INTO v_found FROM expired AS e;
        CONTINUE WHEN v_found IS NULL;
        v_locked := flow_try_lock_runs(ARRAY(
            SELECT f.run_id FROM unnest(v_found) AS f WHERE f.kind = 'drive_run'));
        v_found := ARRAY(SELECT f FROM unnest(v_found) AS f
                          WHERE f.kind <> 'drive_run' OR f.run_id = ANY (v_locked));
        v_left := v_left - cardinality(v_found);
        RETURN QUERY
        SELECT b.task_id, b.run_id, b.queue, b.crashes, b.dead_letter_id
          FROM flow_bury_tasks(ARRAY(SELECT f.task_id FROM unnest(v_found) AS f WHERE f.is_dead),
                               NULL) AS b;
        RETURN QUERY
        UPDATE flow_tasks AS t
           SET lease_owner = NULL, lease_expires_at = NULL, available_at = v_now,
               crashes = t.crashes + 1
         WHERE t.task_id = ANY (ARRAY(SELECT f.task_id FROM unnest(v_found) AS f
                                       WHERE NOT f.is_dead))
        RETURNING t.task_id, t.run_id, t.queue, t.crashes, NULL::bigint;
        PERFORM flow_notify_idle(ARRAY[v_queue]);
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_requeue_expired(integer, integer, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_requeue_expired(integer, integer, text)
    IS 'Takes tasks from holders whose lease has expired.';

-- sql/functions/queue/flow_dead_letter.sql
-- flow_dead_letter: makes a task a dead letter, because it can never succeed.
-- Arguments: p_task_id; p_epoch, of the lease, or null for an operator who decides for its holder;
--   p_reason, shown to people: never a token or a payload.
-- Returns the id of the letter; null when the task is not there (any more), the lease is not held
--   under this epoch, or the run has ended and needs no letter.
-- Locks, in order: retention guard (shared), run lock, queue row, row. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_dead_letter(p_task_id bigint, p_epoch bigint, p_reason text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_letter bigint;
BEGIN
    IF coalesce(btrim(p_reason), '') = '' THEN
        PERFORM flow_raise_argument('p_reason', 'it is blank');
    END IF;
    PERFORM flow_lock_runs(ARRAY(
        SELECT t.run_id FROM flow_tasks AS t
         WHERE t.task_id = p_task_id AND t.kind = 'drive_run'));
    PERFORM FROM flow_tasks AS t
      WHERE t.task_id = p_task_id
        AND (p_epoch IS NULL OR (t.epoch = p_epoch AND t.lease_expires_at IS NOT NULL))
        FOR UPDATE;
    IF FOUND THEN
        SELECT b.dead_letter_id INTO v_letter
          FROM flow_bury_tasks(ARRAY[p_task_id], left(p_reason, 2000)) AS b;
    END IF;
    RETURN v_letter;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_dead_letter(bigint, bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_dead_letter(bigint, bigint, text) IS 'Makes a task a dead letter.';

-- sql/functions/queue/flow_redrive.sql
-- flow_redrive: puts dead letters back into their queues, with all attempts before them.
-- Arguments: p_dead_letter_id, one letter; or p_queue, at most p_limit letters of a queue, the
--   oldest first. One of the two.
-- Returns one row a letter: dead_letter_id, run_id, and redriven. A letter that is not there (any
--   more) gives no row, so it may be repeated. Not redriven, and kept: the letter of a task by
--   token whose hook is not known. The run of a drive task is woken, unless it has ended.
-- Locks, in order: retention guard (shared), run locks, rows, queue rows. SQLSTATEs: WF010.
-- Callers: worker.
CREATE FUNCTION flow_redrive(
    p_dead_letter_id bigint DEFAULT NULL, p_queue text DEFAULT NULL, p_limit integer DEFAULT 1000
) RETURNS TABLE (dead_letter_id bigint, run_id text, redriven boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_letter record;
    v_ids bigint[];
    v_runs text[];
    v_queues text[] := '{}';
BEGIN
    PERFORM flow_check_limit(p_limit);
    IF (p_dead_letter_id IS NULL) = (p_queue IS NULL) THEN
        PERFORM flow_raise_argument('p_queue', 'name one dead letter or one queue');
    END IF;
    v_ids := CASE WHEN p_queue IS NULL THEN ARRAY[p_dead_letter_id] ELSE ARRAY(
        SELECT d.dead_letter_id FROM flow_dead_letters AS d
         WHERE d.queue = p_queue ORDER BY d.dead_letter_id LIMIT p_limit) END;
    PERFORM flow_lock_runs(ARRAY(
        SELECT d.run_id FROM flow_dead_letters AS d
         WHERE d.dead_letter_id = ANY (v_ids) AND d.kind = 'drive_run'));
    v_now := flow_now();
    v_runs := '{}';
    FOR v_letter IN
        SELECT d.dead_letter_id, d.queue, d.kind, d.run_id, d.payload, d.policy,
               d.kind = 'drive_run' AS drives,
               flow_is_token_kind(d.kind) AND d.run_id IS NULL AS is_lost
          FROM flow_dead_letters AS d
         WHERE d.dead_letter_id = ANY (v_ids)
         ORDER BY d.dead_letter_id
           FOR UPDATE
    LOOP
        dead_letter_id := v_letter.dead_letter_id;
        run_id := v_letter.run_id;
        redriven := NOT v_letter.is_lost;
        IF v_letter.drives THEN
            UPDATE flow_runs AS r SET dead_letter_id = NULL, blocked_reason = NULL
             WHERE r.run_id = v_letter.run_id AND r.dead_letter_id = v_letter.dead_letter_id;
            v_runs := v_runs || v_letter.run_id;
        ELSIF redriven THEN
            v_queues := v_queues || v_letter.queue;
            INSERT INTO flow_tasks (queue, run_id, kind, payload, priority, available_at,
                enqueued_at, runtime_build, workflow_name, concurrency_key, max_attempts,
                max_stalled, retry_delay, timeout, keep)
            SELECT v_letter.queue, v_letter.run_id, replace(v_letter.kind, '_by_token', ''),
                   v_letter.payload, coalesce(p.priority, 0), v_now, v_now,
                   coalesce(r.runtime_build, ''),
                   CASE WHEN v_letter.kind = 'run_step'
                        THEN 'step:' || (v_letter.payload ->> 'step_name')
                        ELSE r.workflow_name END, p.concurrency_key,
                   p.max_attempts, p.max_stalled, p.retry_delay, p.timeout, coalesce(p.keep, false)
              FROM jsonb_to_record(v_letter.policy) AS p (priority smallint, concurrency_key text,
                   max_attempts integer, max_stalled integer, retry_delay interval,
                   timeout interval, keep boolean)
              LEFT JOIN LATERAL (
                    SELECT f.runtime_build, f.workflow_name FROM flow_runs AS f
                     WHERE f.run_id = v_letter.run_id LIMIT 1) AS r ON true;
        END IF;
        IF redriven THEN
            DELETE FROM flow_dead_letters AS d WHERE d.dead_letter_id = v_letter.dead_letter_id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM flow_enqueue_drives(ARRAY(
        SELECT r.run_id FROM flow_runs AS r
         WHERE r.run_id = ANY (v_runs) AND NOT flow_is_terminal(r.status)));
    PERFORM flow_notify_idle(v_queues);
END
$$;

REVOKE EXECUTE ON FUNCTION flow_redrive(bigint, text, integer) FROM PUBLIC;
COMMENT ON FUNCTION flow_redrive(bigint, text, integer)
    IS 'Puts dead letters back into their queues.';

-- sql/functions/queue/flow_pause_queue.sql
-- What operators say about queues.
--   flow_pause_queue(queue)    nothing is claimed from it any more; what is at work goes on
--   flow_resume_queue(queue)   it is claimed from again
--   flow_set_queue_limits(queue, max_running, max_per_key, rate_limit, rate_interval)
-- Arguments: p_queue; p_max_running, most live leases at a time; p_max_per_key, most of one
--   concurrency key; p_rate_limit, most claims in p_rate_interval. Null: no limit.
-- Pausing and resuming return whether that changed anything.
-- Locks: the row of the queue. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_pause_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_check_queue(p_queue);
    INSERT INTO flow_queues AS q (queue, paused) VALUES (p_queue, true)
        ON CONFLICT (queue) DO UPDATE SET paused = true WHERE NOT q.paused;
    RETURN FOUND;
END
$$;

CREATE FUNCTION flow_resume_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_resumed boolean;
BEGIN
    PERFORM flow_check_queue(p_queue);
    UPDATE flow_queues AS q SET paused = false WHERE q.queue = p_queue AND q.paused;
    v_resumed := FOUND;
    IF v_resumed THEN
        PERFORM flow_notify_idle(ARRAY[p_queue]);
    END IF;
    RETURN v_resumed;
END
$$;

CREATE FUNCTION flow_set_queue_limits(
    p_queue text, p_max_running integer DEFAULT NULL, p_max_per_key integer DEFAULT NULL,
    p_rate_limit integer DEFAULT NULL, p_rate_interval interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM flow_check_queue(p_queue);
    IF p_max_running < 0 OR p_max_per_key < 1 OR p_rate_limit < 0 THEN
        PERFORM flow_raise_argument('p_max_running', 'a limit cannot be that small');
    ELSIF (p_rate_limit IS NULL) <> (p_rate_interval IS NULL) OR p_rate_interval <= '0'
        OR p_rate_interval > interval '1000 years'
    THEN
        PERFORM flow_raise_argument('p_rate_interval',
            'a rate has a limit and an interval longer than nothing, at most 1000 years');
    END IF;
    INSERT INTO flow_queues AS q (queue, max_running, max_per_key, rate_limit, rate_interval)
    VALUES (p_queue, p_max_running, p_max_per_key, p_rate_limit, p_rate_interval)
        ON CONFLICT (queue) DO UPDATE
       SET max_running = excluded.max_running, max_per_key = excluded.max_per_key,
           rate_limit = excluded.rate_limit, rate_interval = excluded.rate_interval,
           rate_started_at = 'epoch', rate_used = 0;
END
$$;

CREATE FUNCTION flow_check_queue(p_queue text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'it must be 1 to 255 bytes, not blank');
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_pause_queue(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_resume_queue(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION
    flow_set_queue_limits(text, integer, integer, integer, interval) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION flow_check_queue(text) FROM PUBLIC;
COMMENT ON FUNCTION flow_pause_queue(text) IS 'Nothing is claimed from the queue any more.';
COMMENT ON FUNCTION flow_resume_queue(text) IS 'The queue is claimed from again.';
COMMENT ON FUNCTION flow_set_queue_limits(text, integer, integer, integer, interval)
    IS 'Limits how many tasks of a queue are at work, and how often they are claimed.';
COMMENT ON FUNCTION flow_check_queue(text) IS 'Refuses a queue name that is blank or too long.';

-- sql/functions/fleet/flow_listen_hint.sql
-- flow_listen_hint: says that somebody listens to these queues and has nothing to do.
-- Call it, then claim once more, then wait: a task that came before the hint is found by that
--   claim, one that comes after it is notified. Call it again after each notification and when it
--   runs out.
-- Arguments: p_queues; p_idle, how long the hint is good, at most a minute.
-- Returns after how long to call it again because a queue was notified in the last ten
--   milliseconds and is not listened for until then: commits that notify wait for each other, so
--   there are at most a hundred of them a second and queue. Nothing ('0') means that whatever
--   comes is notified; null that one of the queues does not notify, so that looking must do.
-- Nothing is written while a hint is good for half of that, and nobody is waited for.
-- Locks: rows of flow_idle_queues, only when free. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_listen_hint(p_queues text[], p_idle interval DEFAULT '10 seconds')
RETURNS interval
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    c_rest CONSTANT interval := '10 milliseconds';
    v_now timestamptz := flow_now();
    v_queue text;
    v_rest interval;
BEGIN
    IF p_idle IS NULL OR p_idle NOT BETWEEN interval '0' AND interval '1 minute' THEN
        PERFORM flow_raise_argument('p_idle', 'it must be from nothing to one minute');
    END IF;
    FOR v_queue IN
        SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)
         WHERE NOT EXISTS (SELECT FROM flow_idle_queues AS i WHERE i.queue = u.queue)
    LOOP
        IF pg_try_advisory_xact_lock(flow_mark_key('idle ' || v_queue)) THEN
            INSERT INTO flow_idle_queues (queue) VALUES (v_queue) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    PERFORM FROM flow_queues AS q WHERE q.queue = ANY (p_queues) AND NOT q.notify;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT max(i.notified_at) + c_rest - v_now INTO v_rest
      FROM flow_idle_queues AS i
     WHERE i.queue = ANY (p_queues) AND i.idle_until IS NULL
       AND i.notified_at BETWEEN v_now - c_rest AND v_now;
    PERFORM FROM flow_idle_queues AS i
      WHERE i.queue = ANY (p_queues)
        AND (i.idle_until IS NULL OR i.idle_until NOT BETWEEN v_now + p_idle / 2
                                                         AND v_now + interval '1 minute')
        AND i.notified_at NOT BETWEEN v_now - c_rest AND v_now;
    IF FOUND THEN
        UPDATE flow_idle_queues AS i
           SET idle_until = v_now + p_idle
          FROM (SELECT f.queue FROM flow_idle_queues AS f
                 WHERE f.queue = ANY (p_queues)
                   AND (f.idle_until IS NULL OR f.idle_until < v_now + p_idle
                        OR f.idle_until > v_now + interval '1 minute')
                   AND f.notified_at NOT BETWEEN v_now - c_rest AND v_now
                 ORDER BY f.queue
                   FOR UPDATE SKIP LOCKED) AS free
         WHERE i.queue = free.queue;
    END IF;
    RETURN coalesce(v_rest, '0');
END
$$;

REVOKE EXECUTE ON FUNCTION flow_listen_hint(text[], interval) FROM PUBLIC;
COMMENT ON FUNCTION flow_listen_hint(text[], interval)
    IS 'Says that somebody listens to these queues and has nothing to do.';

-- sql/functions/fleet/flow_release_strays.sql
-- flow_release_strays: gives back the leases of runs that a claim took and nobody was told of,
-- because whoever claimed gave up waiting for the answer.
-- Arguments: p_queues of that claim; p_owner, the name it was made under, and no later claim is;
--   p_held, a JSON array of the {"task_id", "epoch"} that its process does have.
-- Returns how many were given back, without a mark of the attempt, and how many could not be
--   because their run is busy right now: call it again.
-- Locks, in order: as flow_release_tasks. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_release_strays(p_queues text[], p_owner text, p_held json)
RETURNS TABLE (released bigint, busy bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_tasks bigint[];
    v_epochs bigint[];
    v_strays json;
BEGIN
    BEGIN
        SELECT array_agg(l.task_id), array_agg(l.epoch) INTO v_tasks, v_epochs
          FROM json_to_recordset(p_held) AS l (task_id bigint, epoch bigint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_held', 'it must be an array of {"task_id", "epoch"}');
    END;
    SELECT json_agg(json_build_object('task_id', t.task_id, 'epoch', t.epoch)) INTO v_strays
      FROM flow_tasks AS t
     WHERE t.queue = ANY (p_queues) AND t.lease_owner = p_owner AND t.kind = 'drive_run'
       AND t.epoch IS DISTINCT FROM v_epochs[array_position(v_tasks, t.task_id)];
    RETURN QUERY
    SELECT count(*) FILTER (WHERE r.released), count(*) FILTER (WHERE NOT r.released)
      FROM flow_release_tasks(coalesce(v_strays, '[]')) AS r;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_release_strays(text[], text, json) FROM PUBLIC;
COMMENT ON FUNCTION flow_release_strays(text[], text, json)
    IS 'Gives back the leases that a claim took and nobody was told of.';

-- sql/types/flow_due_wakeup.sql
-- flow_due_wakeup: a due wakeup whose row the scheduler has locked; place is where that row is, and
-- stays as long as the lock.
CREATE TYPE flow_due_wakeup AS (
    run_id text COLLATE "C",
    kind text COLLATE "C",
    subject_id text COLLATE "C",
    due_at timestamptz,
    place tid
);

COMMENT ON TYPE flow_due_wakeup IS 'A due wakeup whose row the scheduler has locked.';

-- sql/functions/wakeups/flow_enqueue_due.sql
-- flow_enqueue_due: turns due wakeups into drive tasks, one a run, and marks them dispatched.
-- Arguments: p_limit, 1 to 1000, the earliest first; p_as_of, due until then, null for now.
-- Returns what this call dispatched, with build, workflow and queue of the run. Any number of
--   callers may run at once: each wakeup is dispatched by one of them. A run that is busy right now
--   is left for the next call.
-- Locks, in order: rows and run locks, both only when free, so that it never waits for a run; then
--   queue rows, by run. SQLSTATEs: WF010. Callers: worker.
CREATE FUNCTION flow_enqueue_due(
    p_limit integer DEFAULT 1000, p_as_of timestamptz DEFAULT NULL
) RETURNS TABLE (
    run_id text, kind text, subject_id text, due_at timestamptz, runtime_build text,
    workflow_name text, queue text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := coalesce(p_as_of, flow_now());
    v_rows flow_due_wakeup[];
    v_runs text[];
    v_free text[];
    v_low timestamptz;
BEGIN
    PERFORM flow_check_limit(p_limit);
    PERFORM flow_move_wakeups_mark(flow_now());
    SELECT m.low_water INTO v_low FROM flow_marks AS m WHERE m.name = '' AND m.takes = '';
    v_low := coalesce(v_low, '-infinity');
    WITH due AS MATERIALIZED (
        SELECT w.run_id, w.kind, w.subject_id, w.due_at, w.ctid AS place
          FROM scheduled_wakeups AS w
         WHERE w.dispatched_at IS NULL AND w.due_at <= v_until AND w.due_at >= v_low
         ORDER BY w.due_at, w.run_id, w.kind, w.subject_id
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(ROW(d.run_id, d.kind, d.subject_id, d.due_at, d.place)
               ::flow_due_wakeup),
           array_agg(DISTINCT d.run_id)
      INTO v_rows, v_runs
      FROM due AS d;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    v_free := flow_try_lock_runs(v_runs);
    IF cardinality(v_free) < cardinality(v_runs) THEN
        v_rows := ARRAY(SELECT d FROM unnest(v_rows) AS d WHERE d.run_id = ANY (v_free));
    END IF;
    -- by the places of the locked rows: as a join it is planned to compare every wakeup with every
    -- other
    UPDATE scheduled_wakeups AS w
       SET dispatched_at = flow_now()
     WHERE w.ctid = ANY (ARRAY(SELECT d.place FROM unnest(v_rows) AS d));
    PERFORM flow_enqueue_drives(v_free);
    RETURN QUERY
    SELECT d.run_id, d.kind, d.subject_id, d.due_at, r.runtime_build, r.workflow_name, r.queue
      FROM unnest(v_rows) AS d
      LEFT JOIN LATERAL (
            SELECT f.runtime_build, f.workflow_name, f.queue FROM flow_runs AS f
             WHERE f.run_id = d.run_id LIMIT 1) AS r ON true
     ORDER BY d.due_at, d.run_id, d.kind, d.subject_id;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_enqueue_due(integer, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION flow_enqueue_due(integer, timestamptz) IS 'Turns due wakeups into drive tasks.';

-- sql/types/flow_import_event.sql
-- flow_import_event: one event of a history that is imported.
CREATE TYPE flow_import_event AS (
    sequence bigint,
    event_type text,
    subject_id text,
    due_at timestamptz,
    payload json,
    event_id uuid,
    recorded_at timestamptz,
    schema_version smallint
);

COMMENT ON TYPE flow_import_event IS 'One event of a history that is imported.';

-- sql/functions/append/flow_import_history.sql
-- flow_import_history: stores the complete history of a new run under its own ids and times.
-- Arguments: p_run_id; p_events, a JSON array in order of {"sequence", "type", "subject"?,
--   "due_at"? (RFC 3339), "payload", "event_id", "recorded_at" (RFC 3339), "schema_version"?};
--   p_queue.
-- Returns the head. A run that has not ended is woken.
-- Locks, in order: retention guard (shared), run lock, token locks, rows, queue row.
-- SQLSTATEs: WF002 the run exists; WF004 and WF009 the events do not follow one another; WF005 an
--   open hook's token is taken; WF010 malformed; WF012; WF013. Callers: worker.
CREATE FUNCTION flow_import_history(
    p_run_id text, p_events json, p_queue text DEFAULT 'default'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_shielded boolean := flow_json_is_hard(p_events::text);
    v_events json := p_events;
    v_rows flow_import_event[];
    v_head bigint;
    v_status text;
BEGIN
    IF NOT flow_run_id_is_valid(p_run_id) THEN
        PERFORM flow_raise_run_id(p_run_id);
    END IF;
    IF coalesce(btrim(p_queue), '') = '' OR octet_length(p_queue) > 255 THEN
        PERFORM flow_raise_argument('p_queue', 'a queue name has 1 to 255 bytes and is not blank');
    END IF;
    IF v_shielded THEN
        v_events := flow_json_shield(p_events::text)::json;
    END IF;
    BEGIN
        SELECT array_agg(ROW(x.sequence, flow_text_unshield(v_shielded, x.type),
                   flow_text_unshield(v_shielded, x.subject), flow_deadline(x.due_at),
                   CASE WHEN v_shielded THEN flow_json_unshield(x.payload::text)::json
                        ELSE x.payload END,
                   x.event_id, x.recorded_at, x.schema_version)::flow_import_event)
          INTO v_rows
          FROM json_to_recordset(v_events) AS x (sequence bigint, type text, subject text,
                   due_at text, payload json, event_id uuid, recorded_at timestamptz,
                   schema_version smallint);
    EXCEPTION WHEN data_exception THEN
        PERFORM flow_raise_argument('p_events', 'an event has a member of the wrong type or form');
    END;
    IF v_rows IS NULL THEN
        PERFORM flow_raise_argument('p_events', 'there is no event');
    END IF;

    IF EXISTS (SELECT FROM unnest(v_rows) AS e WHERE e.event_id IS NULL) THEN
        PERFORM flow_raise_transition(p_run_id, 'an event of a history has an event id');
    END IF;

    PERFORM flow_lock_runs(ARRAY[p_run_id]);
    PERFORM FROM flow_runs AS r WHERE r.run_id = p_run_id;
    IF FOUND THEN
        PERFORM flow_raise_conflict(p_run_id, 'the run exists already');
    END IF;
    IF p_queue <> 'default' OR flow_is_repeatable() THEN
        PERFORM flow_reserve_runs(ARRAY[p_run_id], ARRAY[p_queue], flow_now());
    END IF;
    BEGIN
        INSERT INTO flow_event_log (run_id, sequence, event_id, event_type, subject_id, due_at,
            payload, recorded_at, schema_version)
        SELECT p_run_id, e.sequence,
               -- what is derived anyway need not be kept
               nullif(e.event_id, flow_event_id(p_run_id, e.sequence)), e.event_type, e.subject_id,
               e.due_at, e.payload,
               e.recorded_at, e.schema_version
          FROM unnest(v_rows) AS e;
    EXCEPTION WHEN unique_violation THEN
        PERFORM flow_raise_transition(p_run_id, 'two events have the same sequence');
    END;
    SELECT r.head_sequence, r.status INTO v_head, v_status
      FROM flow_runs AS r WHERE r.run_id = p_run_id;
    PERFORM flow_redelivered(p_run_id, v_status);
    RETURN v_head;
END
$$;

REVOKE EXECUTE ON FUNCTION flow_import_history(text, json, text) FROM PUBLIC;
COMMENT ON FUNCTION flow_import_history(text, json, text)
    IS 'Stores the complete history of a new run under its own ids and times.';

-- sql/roles/flow_capabilities.sql
-- flow_capabilities: which functions and table privileges each capability needs; the matrix of
-- sql/README.md as data, so that flow_grant and its tests read the same list.
-- Arguments: none. Returns capability, kind ('verb', 'helper' or 'table') and name. Verbs are for
--   people and programs to call; helpers are what verbs call, because they run with the rights of
--   their caller; for a table, privileges says which.
-- Locks: none. SQLSTATEs: none. Callers: whoever reads the matrix.
CREATE FUNCTION flow_capabilities()
RETURNS TABLE (capability text, kind text, name text, privileges text)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    WITH reads (name) AS (VALUES
        ('flow_now'), ('flow_history'), ('flow_run_info'), ('flow_list_runs'),
        ('flow_list_run_ids'), ('flow_run_summary'), ('flow_open_suspensions'),
        ('flow_due_wakeups'), ('flow_next_wakeup'), ('flow_load_runs'), ('flow_capabilities'),
        ('flow_live_workers'), ('flow_build_usage'), ('flow_health'), ('flow_snapshot_holders')
    ), secrets (name) AS (VALUES
        ('flow_list_active_hooks'), ('flow_find_hook')
    ), client (name) AS (VALUES
        ('flow_start'), ('flow_start_many'), ('flow_resume_wait'), ('flow_resume_due_waits'),
        ('flow_dispose_expired_hooks'), ('flow_resume_hook'), ('flow_resume_hook_by_token'),
        ('flow_dispose_hook'), ('flow_dispose_hook_by_token'), ('flow_request_cancellation'),
        ('flow_force_cancel'), ('flow_terminate_for_timeout'),
        ('flow_terminate_for_host_shutdown'), ('flow_record_progress'),
        ('flow_link_child_operation'), ('flow_wake_run'), ('flow_uuid7'),
        ('flow_enqueue_task'), ('flow_channel'), ('flow_set_run_priority'),
        ('flow_await_run'), ('flow_ended_channel')
    ), worker (name) AS (VALUES
        ('flow_complete_step'), ('flow_step_completed'), ('flow_record_heartbeats'),
        ('flow_step_heartbeat'), ('flow_route_steps'), ('flow_ensure_step_tasks'),
        ('flow_settle_step'), ('flow_superseded_steps'), ('flow_expire_steps'),
        ('flow_append'), ('flow_append_many'), ('flow_append_batch'), ('flow_claim_tasks'),
        ('flow_claim_runs'), ('flow_acquire_run'), ('flow_heartbeat'), ('flow_release_run'),
        ('flow_give_back'), ('flow_enqueue_due'), ('flow_import_history'), ('flow_complete_tasks'),
        ('flow_release_tasks'), ('flow_requeue_expired'), ('flow_dead_letter'), ('flow_redrive'),
        ('flow_pause_queue'), ('flow_resume_queue'), ('flow_set_queue_limits'),
        ('flow_listen_hint'), ('flow_worker_beat'), ('flow_worker_gone'),
        ('flow_release_strays')
    ), verbs (capability, name) AS (
        SELECT c.capability, r.name FROM reads AS r
         CROSS JOIN (VALUES ('reader'), ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT c.capability, s.name FROM secrets AS s
         CROSS JOIN (VALUES ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT c.capability, s.name FROM client AS s
         CROSS JOIN (VALUES ('client'), ('worker')) AS c (capability)
        UNION ALL
        SELECT 'worker', w.name FROM worker AS w
    )
    SELECT v.capability, 'verb', v.name, 'EXECUTE' FROM verbs AS v
    UNION ALL
    -- nothing that is not a verb and not for administrators does anything by itself
    SELECT c.capability, 'helper', p.proname::text, 'EXECUTE'
      FROM pg_catalog.pg_proc AS p
     CROSS JOIN (VALUES ('reader'), ('client'), ('worker')) AS c (capability)
     WHERE p.pronamespace = current_schema()::regnamespace
       AND p.proname <> 'flow_grant'
       AND NOT EXISTS (SELECT FROM verbs AS v WHERE v.name = p.proname)
       AND (c.capability <> 'reader' OR p.proname IN ('flow_check_exists', 'flow_check_limit',
            'flow_due', 'flow_event_id', 'flow_is_terminal', 'flow_json_is_hard', 'flow_raise',
            'flow_raise_argument', 'flow_raise_not_found', 'flow_time_text',
            'flow_unbundle',
            'flow_waiting_for', 'flow_waiting_step',
            'flow_worker_admits'))
    UNION ALL
    SELECT t.capability, 'table', t.name, t.privileges
      FROM (VALUES
        ('reader', 'flow_events', 'SELECT'),
        ('reader', 'flow_event_log', 'SELECT'),
        ('reader', 'flow_runs', 'SELECT'),
        ('reader', 'scheduled_wakeups', 'SELECT'),
        ('reader', 'flow_tasks', 'SELECT (task_id, queue, run_id, kind, priority, available_at,'
            || ' attempts, lease_owner, lease_expires_at, epoch, wakes, enqueued_at, crashes,'
            || ' runtime_build, workflow_name, concurrency_key, dedupe_key, dedupe_until,'
            || ' max_attempts, max_stalled, retry_delay, timeout, keep, last_error,'
            || ' missing_step)'),
        ('reader', 'flow_queues', 'SELECT'),
        ('reader', 'flow_lanes', 'SELECT'),
        ('reader', 'flow_dead_letters', 'SELECT'),
        ('reader', 'flow_finished_tasks', 'SELECT'),
        ('reader', 'flow_workers', 'SELECT'),
        ('reader', 'flow_step_heartbeats', 'SELECT'),
        ('reader', 'flow_migrations', 'SELECT'),
        -- everything but tokens
        ('reader', 'flow_active_hooks', 'SELECT (run_id, hook_id, metadata, expires_at,'
            || ' created_sequence, created_at, payload_schema)'),
        ('client', 'flow_events', 'SELECT, INSERT'),
        ('client', 'flow_event_log', 'SELECT, INSERT'),
        ('client', 'flow_runs', 'SELECT, INSERT, UPDATE'),
        ('client', 'scheduled_wakeups', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_tasks', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_active_hooks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_migrations', 'SELECT'),
        ('client', 'flow_queues', 'SELECT'),
        ('client', 'flow_lanes', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_marks', 'SELECT, INSERT, UPDATE'),
        ('client', 'flow_idle_queues', 'SELECT, UPDATE'),
        ('client', 'flow_run_waiters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('client', 'flow_dead_letters', 'SELECT'),
        ('client', 'flow_finished_tasks', 'SELECT'),
        ('client', 'flow_workers', 'SELECT'),
        ('client', 'flow_step_heartbeats', 'SELECT, DELETE'),
        ('worker', 'flow_events', 'SELECT, INSERT'),
        ('worker', 'flow_event_log', 'SELECT, INSERT'),
        ('worker', 'flow_runs', 'SELECT, INSERT, UPDATE'),
        ('worker', 'scheduled_wakeups', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_tasks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_active_hooks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_migrations', 'SELECT'),
        ('worker', 'flow_queues', 'SELECT, INSERT, UPDATE'),
        ('worker', 'flow_lanes', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_marks', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_idle_queues', 'SELECT, INSERT, UPDATE'),
        ('worker', 'flow_run_waiters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_dead_letters', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_finished_tasks', 'SELECT, INSERT, DELETE'),
        ('worker', 'flow_workers', 'SELECT, INSERT, UPDATE, DELETE'),
        ('worker', 'flow_step_heartbeats', 'SELECT, INSERT, UPDATE, DELETE')
      ) AS t (capability, name, privileges)
$$;

REVOKE EXECUTE ON FUNCTION flow_capabilities() FROM PUBLIC;
COMMENT ON FUNCTION flow_capabilities()
    IS 'Which functions and table privileges each capability needs.';

-- sql/roles/flow_grant.sql
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

-- The table is alembic's; this ends the first revision.
COMMENT ON TABLE flow_alembic_version IS 'The newest applied revision, as alembic keeps it; flow_migrations has them all.';
COMMENT ON COLUMN flow_alembic_version.version_num IS 'Revision.';
