-- One timer a run: the given number was due during the last hour, the others are due tomorrow.
INSERT INTO scheduled_wakeups (run_id, kind, subject_id, due_at)
SELECT 'run-' || lpad(n::text, 9, '0'), 'wait', 'nap',
       CASE WHEN n <= %(due)s
            THEN clock_timestamp() - interval '1 hour' * (1 - n::double precision / %(due)s)
            ELSE clock_timestamp() + interval '1 day' + interval '1 ms' * n END
  FROM generate_series(1, %(rows)s) AS n;
