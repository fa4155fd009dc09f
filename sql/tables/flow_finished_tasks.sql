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
