-- One hook a run.
INSERT INTO flow_active_hooks (run_id, hook_id, token, created_sequence, created_at)
SELECT 'run-' || lpad(n::text, 9, '0'), 'message', 'token-' || md5(n::text) || md5((n + 1)::text),
       3, clock_timestamp()
  FROM generate_series(1, %(rows)s) AS n;
