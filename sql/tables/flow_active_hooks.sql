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
