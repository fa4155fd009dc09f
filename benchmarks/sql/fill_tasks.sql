-- One drive task a run, all of them claimable.
INSERT INTO flow_tasks (queue, run_id, available_at, enqueued_at)
SELECT 'default', 'run-' || lpad(n::text, 9, '0'),
       clock_timestamp() - interval '1 hour' + interval '1 hour' * n / %(rows)s, clock_timestamp()
  FROM generate_series(1, %(rows)s) AS n;
