"""The commands about the fleet: its health, builds that may go, and schedulers beside workers."""

import asyncio
import os
import signal
import sys
from datetime import timedelta

from typer.testing import CliRunner

from flowpg.client import FlowClient
from flowpg.console import lines
from flowpg.console.main import app
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres.fleet_verbs import HealthFact
from tests.fleet.commands import exit_code, line

runner = CliRunner()


def test_a_build_that_open_runs_need_must_stay(direct_dsn: str) -> None:
    with FlowClient(direct_dsn) as client:
        run = client.start(WorkflowSpec.python("order").with_runtime_build("v1"), None)
        stays = runner.invoke(app, ["builds", "v1", "--dsn", direct_dsn])
        assert stays.exit_code == 1
        assert stays.stdout.startswith("v1: 1 open run since 2")
        assert stays.stdout.endswith("; 0 live workers\n")
        client.force_cancel(run.run_id)
    for arguments in (["builds", "v1"], ["builds"]):
        assert runner.invoke(app, [*arguments, "--dsn", direct_dsn]).exit_code == 0
    assert "no open run is pinned" in runner.invoke(app, ["builds", "--dsn", direct_dsn]).stderr
    goes = runner.invoke(app, ["builds", "v1", "--dsn", direct_dsn])
    assert goes.stdout == "v1: may be retired; 0 live workers\n"


def test_health_says_what_no_live_worker_takes(direct_dsn: str) -> None:
    quiet = runner.invoke(app, ["health", "--dsn", direct_dsn])
    assert quiet.exit_code == 0
    assert "live workers: 0" in quiet.stdout
    with FlowClient(direct_dsn) as client:
        client.start(WorkflowSpec.python("order").with_runtime_build("v1"), None)
        client.start(WorkflowSpec.python("order"), None, queue="bulk")
    found = runner.invoke(app, ["health", "--dsn", direct_dsn])
    assert found.exit_code == 1
    assert "no worker for workflow order on queue bulk: 1 task, for 0 s\n" in found.stdout
    assert "no worker for workflow order on queue default of build v1: 1 task" in found.stdout
    assert "queue bulk: 1 ready, for 0 s; 0 leased, 0 expired, 0 delayed, 0 dead_letters" in (
        found.stdout
    )


async def test_a_scheduler_works_until_it_is_told_to_stop(direct_dsn: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowpg", "scheduler", "--poll", "0.1"),
        env={**os.environ, "FLOWPG_DSN": direct_dsn},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await line(process.stderr, b"scheduling")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_every_fact_of_health_is_a_sentence() -> None:
    minute = timedelta(minutes=1)
    facts = [
        HealthFact("queue", "bulk", 3, minute, {"leased": 2, "paused": True}),
        HealthFact("wakeups", "", 4, minute, {}),
        HealthFact("workers", "", 1, None, {}),
        HealthFact("unserved", "step render on queue gpu", 2, minute, {"build": None}),
        HealthFact("snapshot", "psql", 1, minute, {}),
    ]
    assert list(lines.health(facts)) == [
        "queue bulk: 3 ready, for 60 s; 2 leased, paused",
        "deadlines passed and not dispatched: 4, for 60 s",
        "live workers: 1",
        "no worker for step render on queue gpu: 2 tasks, for 60 s",
        "oldest snapshot: psql, 1 transaction behind, for 60 s",
    ]
