"""Steps of another queue with real processes at both ends: crashes, zombies, cancellation."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.snapshot import RunStatus
from tests.engine.support import EngineStore, short
from tests.fleet import routed_app
from tests.fleet.commands import line, worker_process
from tests.fleet.watching import until_ended
from tests.waiting import until_async

APP = "tests.fleet.routed_app:app"
SHORT = ("--lease", "1.5", "--poll", "0.2")


@asynccontextmanager
async def worker(
    dsn: str, queue: str, name: str, gate: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker of one queue whose steps return ``name``."""
    environ = {"FLOWPG_TEST_NAME": name, "FLOWPG_TEST_GATE": str(gate)}
    async with worker_process(dsn, "--queue", queue, *SHORT, app=APP, environ=environ) as process:
        yield process


async def test_a_step_goes_on_elsewhere_when_its_worker_is_killed(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with worker(direct_dsn, "default", "driver", gate):
        run_id = await routed_app.one.start(client, True)
        async with worker(direct_dsn, "slow", "victim", gate) as victim:
            await line(victim.stdout, b"entered")
            assert (await client.run_info(run_id)).lease_owner is None
            victim.kill()
        gate.touch()
        async with worker(direct_dsn, "slow", "heir", gate):
            await until_ended(client, run_id)
    assert (await client.snapshot(run_id)).output == "heir"
    history = short(await client.history(run_id))
    assert sum(event.startswith("step.started") for event in history) == 1


async def test_a_step_worker_that_stood_still_is_refused_when_it_comes_back(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with worker(direct_dsn, "slow", "zombie", gate) as zombie:
        async with worker(direct_dsn, "default", "driver", gate):
            run_id = await routed_app.one.start(client, True)
            await line(zombie.stdout, b"entered")
            zombie.send_signal(signal.SIGSTOP)
            gate.touch()
            async with worker(direct_dsn, "slow", "heir", gate):
                await until_ended(client, run_id)
        zombie.send_signal(signal.SIGCONT)
        await line(zombie.stderr, b"was lost")
    assert (await client.snapshot(run_id)).output == "heir"
    history = short(await client.history(run_id))
    assert sum(event.startswith("step.completed") for event in history) == 1


async def test_a_step_elsewhere_is_told_when_its_run_is_cancelled(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with (
        worker(direct_dsn, "default", "driver", gate),
        worker(direct_dsn, "slow", "helper", gate) as helper,
    ):
        run_id = await routed_app.one.start(client, True)
        await line(helper.stdout, b"entered")
        await client.request_cancellation(run_id, "enough")
        await line(helper.stdout, b"cancelled")
        await until_ended(client, run_id)
    assert (await client.run_info(run_id)).status is RunStatus.CANCELLED


async def test_a_stopped_step_worker_lets_its_step_finish(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with (
        worker(direct_dsn, "default", "driver", gate),
        worker(direct_dsn, "slow", "helper", gate) as helper,
    ):
        run_id = await routed_app.one.start(client, True)
        await line(helper.stdout, b"entered")
        helper.send_signal(signal.SIGTERM)
        gate.touch()
        await until_ended(client, run_id)
        assert await helper.wait() == 0
    assert (await client.snapshot(run_id)).output == "helper"


async def test_a_step_waits_visibly_for_a_worker_and_goes_on_when_one_appears(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with worker(direct_dsn, "default", "driver", gate):
        run_id = await routed_app.one.start(client, False)
        await waits_for(client, run_id, "no worker for step crunch on queue slow")
        async with worker(direct_dsn, "slow", "late", gate):
            await until_ended(client, run_id)
    assert (await client.snapshot(run_id)).output == "late"


async def test_steps_of_durable_asyncio_are_tried_again_and_run_side_by_side(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client, gate = await postgres_only.engine(None), tmp_path / "gate"
    async with (
        worker(direct_dsn, "default", "driver", gate),
        worker(direct_dsn, "slow", "one", gate),
        worker(direct_dsn, "slow", "two", gate),
    ):
        again = await routed_app.again.start(client, str(tmp_path / "mark"))
        many = await routed_app.many.start(client, 100)
        await until_ended(client, again, many)
    assert (await client.snapshot(again)).output in ("one", "two")
    output = (await client.snapshot(many)).output
    assert len(output) == 100
    assert set(output) <= {"one", "two"}
    history = short(await client.history(many))
    assert sum(event.startswith("step.started") for event in history) == 100


async def waits_for(client: FlowEngine, run_id: str, reason: str) -> None:
    """Wait until the run says so."""

    async def says() -> bool:
        return (await client.run_info(run_id)).waiting_for == reason

    await until_async(says, f"run {run_id} says {reason!r}")
