"""``flowpg worker`` as a process: signals, exit codes, and what ``--app`` may name."""

import signal
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from flowpg.console.main import app
from flowpg.console.usercode import load_runtime
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument
from flowpg.fleet.worker import FlowWorker
from tests.engine.support import SPEC, EngineStore, short
from tests.fleet.apps import Marked, Quick
from tests.fleet.commands import exit_code, line, worker_process
from tests.waiting import until_async


async def _finish_elsewhere(store: EngineStore, run_id: str) -> FlowEngine:
    """Another worker that needs no lease to run out."""
    engine = await store.engine(Quick())
    assert await FlowWorker(engine).run_until_idle() == 1
    assert (await engine.snapshot(run_id)).terminal
    return engine


async def test_a_worker_process_drives_runs_and_ends_with_zero_on_sigterm(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "quick")
    async with worker_process(direct_dsn) as process:

        async def ended() -> bool:
            return (await client.run_info(run_id)).status.terminal

        await until_async(ended, "the run ends")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    assert (await client.snapshot(run_id)).output == "quick"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_step_that_outlasts_the_grace_period_is_given_back(
    postgres_only: EngineStore, direct_dsn: str, number: signal.Signals
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, "--grace", "0.1") as process:
        await line(process.stdout, b"entered forever")
        process.send_signal(number)
        await line(process.stdout, b"cleaned up")
        assert await exit_code(process) == 0
    engine = await _finish_elsewhere(postgres_only, run_id)
    assert short(await engine.history(run_id)).count("step.started s") == 1


async def test_a_second_signal_does_not_wait(postgres_only: EngineStore, direct_dsn: str) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, "--grace", "1000") as process:
        await line(process.stdout, b"entered forever")
        process.send_signal(signal.SIGTERM)
        said = await line(process.stderr, b"flowpg: stopping")
        assert b"waiting up to 1000 s for the steps of 1 run; press again to leave" in said
        process.send_signal(signal.SIGINT)
        await line(process.stderr, b"flowpg: leaving at once")
        assert await exit_code(process) == 0
    await _finish_elsewhere(postgres_only, run_id)


async def test_a_step_in_a_thread_that_does_not_end_keeps_no_process_alive(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "deaf")
    async with worker_process(direct_dsn, "--grace", "0") as process:
        await line(process.stdout, b"entered deaf")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    await _finish_elsewhere(postgres_only, run_id)


async def test_the_runs_of_a_killed_worker_go_to_another_when_its_lease_has_run_out(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, "--lease", "30") as process:
        await line(process.stdout, b"entered forever")
        process.kill()
        await process.wait()
    engine = await postgres_only.engine(Quick())
    assert await FlowWorker(engine).run_until_idle() == 0
    postgres_only.advance(timedelta(seconds=31))
    await _finish_elsewhere(postgres_only, run_id)


async def test_a_worker_logs_as_much_as_it_is_told_to(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    assert postgres_only.name == "postgres"
    async with worker_process(direct_dsn, "--log-level", "debug", says=b" DEBUG ") as process:
        await line(process.stderr, b"worker on queue")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0


@pytest.mark.parametrize(
    "name", ["Marked", "marked", "factory"], ids=["class", "instance", "factory"]
)
def test_an_application_is_an_instance_a_class_or_a_factory(name: str) -> None:
    assert isinstance(load_runtime(f"tests.fleet.apps:{name}"), Marked)


@pytest.mark.parametrize(
    ("application", "sentence"),
    [
        ("tests.fleet.apps", "not of the form module:attribute"),
        ("tests.fleet.apps:", "not of the form module:attribute"),
        ("no.such.module:x", "cannot import 'no.such.module'"),
        ("tests.fleet.apps:missing", "has no 'missing'"),
        ("tests.fleet.apps:number", "is no FlowRuntime"),
        ("tests.fleet.apps:makes_none", "is no FlowRuntime"),
        ("tests.fleet.apps:NeedsArguments", "needs arguments"),
        ("tests.fleet.apps:Stepless", "Stepless of .* does not define run_step"),
    ],
)
def test_an_application_that_is_none_is_refused_with_a_sentence(
    application: str, sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        load_runtime(application)


def test_every_option_of_the_command_reaches_the_worker(
    direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def worker(_: FlowEngine, queues: list[str], concurrency: int, **options: Any) -> None:
        made.update(options, queues=queues, concurrency=concurrency)
        raise InvalidArgument("seen enough")

    monkeypatch.setattr("flowpg.console.worker.FlowWorker", worker)
    for name in ("interrupt_by_signal", "log_to_stderr"):  # what a whole process is set to
        monkeypatch.setattr(f"flowpg.console.worker.{name}", lambda *_: None)
    given = (
        "worker --app tests.fleet.apps:marked --queue a --queue b --concurrency 3 --grace 4"
        " --poll 5 --max-crashes 6 --no-schedule --no-tasks --no-listen --direct-dsn host=direct"
        " --max-wedged 7 --dsn"
    )
    found = CliRunner().invoke(app, [*given.split(), direct_dsn])
    assert "seen enough" in found.output
    assert made == {
        "queues": ["a", "b"],
        "concurrency": 3,
        "grace": timedelta(seconds=4),
        "poll": timedelta(seconds=5),
        "max_crashes": 6,
        "schedule": False,
        "tasks": False,
        "listen": False,
        "direct_dsn": "host=direct",
        "max_wedged": timedelta(seconds=7),
        "exits": True,
    }
