"""No verb scans what grows: every plan on 100,000 runs goes by an index and reads a bounded number
of rows, whether the tables were analysed or not, with generic and with custom plans, and with plans
that were made when there were four runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.plans.conftest import MODES, Crowd, explaining

READS = [
    "flow_load_runs('{run-50,run-100,run-7,none}')",
    "flow_history('run-50')",
    "flow_history('run-50', 2, 10)",
    "flow_run_info('run-50')",
    "flow_list_runs()",
    "flow_list_runs('suspended')",
    "flow_list_runs('failed')",
    "flow_list_runs('running')",
    "flow_list_runs('cancelling')",
    "flow_list_runs(p_workflow_name => 'workflow-7')",
    "flow_list_runs('failed', 'workflow-1')",
    "flow_list_runs(p_queue => 'queue-1')",
    "flow_list_runs(p_blocked => true)",
    "flow_list_runs(p_after_created_at => now() - interval '50000 seconds', p_after_run_id => 'r')",
    "flow_list_runs('completed', p_after_created_at => now() - interval '90000 seconds')",
    "flow_list_run_ids('run-5', 1000)",
    "flow_run_builds('{run-5,run-7}')",
    "flow_open_suspensions('run-50')",
    "flow_open_suspensions()",
    "flow_open_suspensions(p_after_run_id => 'run-5', p_limit => 10)",
    "flow_list_active_hooks('run-50')",
    "flow_list_active_hooks(p_after_run_id => 'run-5', p_after_hook_id => 'h', p_limit => 10)",
    "flow_find_hook('token-100')",
    "flow_due_wakeups()",
    "flow_due_wakeups(p_limit => 10)",
    "flow_next_wakeup()",
]
WRITES = [
    "flow_claim_tasks('queue-1', 50, 'me', '1 minute')",
    "flow_claim_tasks('queue-2', 1, 'me', '1 minute')",
    "flow_claim_tasks('no such queue', 50, 'me', '1 minute')",
    """flow_claim_tasks('{queue-0,queue-1,queue-2}'::text[], 50, 'me', '1 minute', '{build-1}',
       p_workflows => '{workflow-7}', p_kinds => null)""",
    """flow_heartbeat('[{"task_id":2,"epoch":0},{"task_id":7,"epoch":0}]', '1 minute')""",
    """flow_complete_tasks('[{"task_id":1,"epoch":0,"ok":true}]')""",
    """flow_release_tasks('[{"task_id":2,"epoch":0},{"task_id":4,"epoch":0}]')""",
    "flow_requeue_expired(50)",
    "flow_dead_letter(2, 0, 'why')",
    "flow_redrive(p_queue => 'queue-1')",
    """flow_enqueue_task('resume_hook', '{"hook_id":"h"}', p_run_id => 'run-50',
       p_dedupe_mode => 'keep_latest')""",
    "flow_enqueue_task('drive_run', p_run_id => 'run-50')",
    "flow_set_run_priority('run-50', 3::smallint, 'k')",
    "flow_acquire_run('run-50', 'me', '1 minute')",
    """flow_heartbeat('[{"run_id":"run-50","epoch":0},{"run_id":"run-2","epoch":0}]', '1 min')""",
    "flow_release_run('run-50', 0, 1)",
    "flow_give_back('run-50', 0, '1 minute', 'why')",
    "flow_wake_run('run-50')",
    "flow_enqueue_due(100)",
    "flow_resume_due_waits(p_limit => 100)",
    "flow_resume_due_waits(p_run_id => 'run-100')",
    "flow_dispose_expired_hooks(p_limit => 100)",
    """flow_append_many('[{"run_id":"run-50","expected":3,"epoch":0,"release":1,"events":[
       {"type":"step_created","subject":"s"},{"type":"step_started","subject":"s"}]},
       {"run_id":"run-100","events":[{"type":"wait_completed","subject":"w"},
       {"type":"hook_created","subject":"i","payload":{"token":"x"}}]},
       {"run_id":"run-150","events":[{"type":"run_completed"}]},
       {"run_id":"new","events":[{"type":"run_created",
       "payload":{"spec":{"name":"w","version":"1"}}}]}]')""",
    """flow_start('{"name":"w","version":"1"}', 'null', 'run-50')""",
    """flow_start('{"name":"w","version":"1"}')""",
    """flow_start_many((SELECT json_agg(json_build_object('run_id', 'run-s' || n,
       'spec', '{"name":"w","version":"1"}'::json)) FROM generate_series(1, 200) AS n))""",
    "flow_resume_hook('run-50', 'h', '1')",
    "flow_resume_hook_by_token('token-100', '1')",
    "flow_dispose_hook_by_token('token-50')",
    "flow_resume_wait('run-100', 'w')",
    "flow_request_cancellation('run-50')",
    "flow_force_cancel('run-50')",
    """flow_record_progress('run-50', '{"progress_id":"p","completed":1}')""",
    """flow_link_child_operation('run-50',
       '{"reference_id":"c","kind":"k","operation_id":"o","flow_run_id":"run-1"}')""",
]
CALLS = READS + WRITES

TABLES = {"flow_event_log", "flow_runs", "flow_active_hooks", "scheduled_wakeups", "flow_tasks"}
TABLES |= {"flow_dead_letters", "flow_lanes", "flow_marks"}
MOST_ROWS = 3000
"""No scan reads more rows than three full pages."""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plans: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every scan of one of our tables, with the statement it is part of."""
    for plan in plans:
        for node in nodes(plan["Plan"]):
            if "Scan" in node["Node Type"] and (
                node.get("Relation Name") in TABLES or node["Node Type"] == "Bitmap Index Scan"
            ):
                yield node, plan["Query Text"]


def check(plans: list[dict[str, Any]], call: str, most: int = MOST_ROWS) -> None:
    """Every scan goes by an index and is short."""
    found = list(scans(plans))
    assert found, f"{call} touched no table: the test sees nothing"
    for node, statement in found:
        where = f"{call}: {node['Node Type']} in {statement}"
        assert node["Node Type"] in ("Index Scan", "Index Only Scan", "Tid Scan"), where
        read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        assert read * node["Actual Loops"] <= most, where


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("session", ["new", "primed"])
def test_every_plan_goes_by_an_index_and_is_short(crowd: Crowd, session: str, mode: str) -> None:
    """A primed session made its plans when there were four runs, and may keep them."""
    plans = (
        crowd.primed[mode] if session == "primed" else explaining(crowd.dsn, plan_cache_mode=mode)
    )
    for call in CALLS:
        check(plans.of(call), call)
    if session == "new":
        plans.connection.close()


def test_the_summary_counts_runs_by_an_index_and_open_things_only(crowd: Crowd) -> None:
    """It looks at the rows of open runs, counts the others by an index, and never reads events."""
    plans = crowd.primed["auto"].of("flow_run_summary()")
    read = {node.get("Relation Name") for node, _ in scans(plans)}
    assert "flow_event_log" not in read
    for node, statement in scans(plans):
        if node["Node Type"] == "Index Scan":
            assert node["Index Name"] == "flow_runs_listed_idx", statement
            assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= MOST_ROWS
        else:
            assert node["Node Type"] == "Index Only Scan", statement
