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
