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
    PERFORM flow_move_lanes(p_queue, p_now - c_margin, v_sweeps, p_filter);
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
