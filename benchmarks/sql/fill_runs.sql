-- Suspended runs, straight into the projection: their histories do not matter here.
INSERT INTO flow_runs (run_id, workflow_name, workflow_version, status, head_sequence, created_at,
                       updated_at)
SELECT 'run-' || lpad(n::text, 9, '0'), 'filled', '1', 'suspended', 3, clock_timestamp(),
       clock_timestamp()
  FROM generate_series(1, %(rows)s) AS n;
