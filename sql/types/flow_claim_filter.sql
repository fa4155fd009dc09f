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
