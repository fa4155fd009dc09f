"""A schema with 100,000 runs, and a way to see every plan that a call executes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from flowpg.postgres.install import install_fresh
from flowpg.testing.servers import PostgresServer

RUNS = 100_000
TABLES = "flow_event_log, flow_runs, flow_active_hooks, scheduled_wakeups, flow_tasks"

# Straight into the tables, the trigger left out: 100,000 runs with three events each, 2,000 of them
# open with a wait or a retry (half of them due), a hook and a task.
LOAD = f"""
ALTER TABLE flow_event_log DISABLE TRIGGER USER;
TRUNCATE flow_event_log, flow_runs, flow_active_hooks, scheduled_wakeups, flow_tasks;
ALTER TABLE flow_event_log SET (autovacuum_enabled = false);
ALTER TABLE flow_runs SET (autovacuum_enabled = false);
ALTER TABLE flow_active_hooks SET (autovacuum_enabled = false);
ALTER TABLE scheduled_wakeups SET (autovacuum_enabled = false);
ALTER TABLE flow_tasks SET (autovacuum_enabled = false);
INSERT INTO flow_runs (run_id, workflow_name, workflow_version, runtime_build, queue, status,
    head_sequence, blocked_reason, created_at, updated_at)
SELECT 'run-' || n, 'workflow-' || n % 50, '1', 'build-' || n % 3, 'queue-' || n % 3,
       CASE WHEN n % 50 = 0 THEN 'suspended' WHEN n % 1000 = 1 THEN 'failed'
            WHEN n % 10000 = 2 THEN 'running' ELSE 'completed' END,
       3, CASE WHEN n % 5000 = 0 THEN 'no build' END,
       now() - n * interval '1 second', now() - n * interval '1 second'
  FROM generate_series(1, {RUNS}) AS n;
INSERT INTO flow_event_log (run_id, sequence, event_id, event_type, subject_id, payload,
    recorded_at, due_at)
SELECT 'run-' || n, s, md5(n || '/' || s)::uuid,
       CASE s WHEN 1 THEN 'run_created' WHEN 2 THEN 'run_started' ELSE 'wait_created' END,
       CASE s WHEN 3 THEN 'w' END,
       CASE s WHEN 1 THEN '{{"spec":{{"name":"w","version":"1"}},"input":null}}'
              ELSE '{{}}' END::json,
       now(), CASE s WHEN 3 THEN now() END
  FROM generate_series(1, {RUNS}) AS n, generate_series(1, 3) AS s;
INSERT INTO scheduled_wakeups (run_id, kind, subject_id, due_at, dispatched_at)
SELECT 'run-' || n, CASE n % 100 WHEN 0 THEN 'wait' ELSE 'step_retry' END, 'w',
       now() + (n - {RUNS // 2}) * interval '1 minute', CASE n % 200 WHEN 0 THEN now() END
  FROM generate_series(50, {RUNS}, 50) AS n;
INSERT INTO flow_active_hooks (run_id, hook_id, token, metadata, expires_at, created_sequence,
    created_at)
SELECT 'run-' || n, 'h', 'token-' || n, '{{}}', NULL, 3, now()
  FROM generate_series(50, {RUNS}, 50) AS n;
INSERT INTO flow_tasks (queue, run_id, available_at, enqueued_at, lease_owner, lease_expires_at,
    epoch, priority)
SELECT 'queue-' || n % 3, 'run-' || n, now() + CASE n % 4 WHEN 0 THEN interval '1 day' ELSE '0' END,
       now(), CASE WHEN n % 2 = 0 THEN 'me' END,
       CASE WHEN n % 2 = 0 THEN now() + CASE WHEN n % 600 = 0 THEN '-1 s' ELSE interval '1 hour' END
       END, 0, n % 2
  FROM generate_series(1, {RUNS}, 1) AS n WHERE n % 50 <> 7;
ALTER TABLE flow_event_log ENABLE TRIGGER USER;
"""

# A handful of runs, so that plans made among them go all the way.
FEW = """
SELECT flow_start('{"name":"w","version":"1"}', 'null', 'run-' || n)
  FROM unnest(ARRAY[1, 50, 100, 150]) AS n;
SELECT flow_append('run-' || n, NULL, format('[{"type":"run_started"},
       {"type":"wait_created","subject":"w","due_in_us":0},
       {"type":"hook_created","subject":"h","payload":{"token":"token-%s"}}]', n)::json)
  FROM unnest(ARRAY[50, 100, 150]) AS n;
UPDATE flow_tasks SET queue = 'queue-1', epoch = 0, lease_owner = 'me',
       lease_expires_at = now() + interval '1 hour' WHERE run_id = 'run-50';
"""


@dataclass
class Plans:
    """A connection that reports the plan of every statement, those inside functions included."""

    connection: psycopg.Connection[Any]
    _found: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection.add_notice_handler(self._notice)
        self.connection.execute("LOAD 'auto_explain'")
        for name, value in (
            ("log_format", "json"),
            ("log_level", "notice"),
            ("log_nested_statements", "on"),
            ("log_analyze", "on"),
            ("log_timing", "off"),
        ):
            self.connection.execute(f"SET auto_explain.{name} = {value}")

    def of(self, call: str) -> list[dict[str, Any]]:
        """The plans of a call, whose effects are undone."""
        self._found.clear()
        with self.connection.transaction(force_rollback=True):
            self.connection.execute("SET LOCAL auto_explain.log_min_duration = 0")
            self.connection.execute(f"SELECT {call}")
        return list(self._found)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        _, found, text = (notice.message_primary or "").partition("plan:\n")
        if found:
            self._found.append(json.loads(text))


def explaining(dsn: str, **settings: str) -> Plans:
    """A connection whose plans can be seen."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("SET search_path = flowpg")
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    return Plans(connection)


@dataclass
class Crowd:
    """The loaded database, and connections that cached their plans while there were four runs."""

    dsn: str
    primed: dict[str, Plans]


MODES = ("force_generic_plan", "force_custom_plan", "auto")


@pytest.fixture(scope="module", params=["not analysed", "analysed"])
def crowd(request: pytest.FixtureRequest, pg_server: PostgresServer) -> Iterator[Crowd]:
    """100,000 runs."""
    from tests.plans.test_plans import CALLS  # the calls to plan while there is nothing yet

    with pg_server.database() as name:
        dsn = pg_server.dsn_of(name)
        install_fresh(dsn)
        administrator = psycopg.connect(dsn, autocommit=True)
        administrator.execute("SET search_path = flowpg")
        administrator.execute(FEW)
        administrator.execute(f"VACUUM ANALYZE {TABLES}")
        try:
            primed = {mode: explaining(dsn, plan_cache_mode=mode) for mode in MODES}
        except psycopg.errors.Error as error:
            pytest.skip(f"auto_explain cannot be loaded: {type(error).__name__}")
        for plans in primed.values():
            for call in CALLS:
                plans.of(call)
        administrator.execute(LOAD)
        if request.param == "analysed":
            administrator.execute(f"VACUUM ANALYZE {TABLES}")
        administrator.close()
        yield Crowd(dsn, primed)
        for plans in primed.values():
            plans.connection.close()
