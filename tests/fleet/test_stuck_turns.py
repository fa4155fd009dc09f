"""A worker whose event loop is blocked by workflow code."""

import pytest

from flowpg.model.snapshot import RunStatus
from tests.engine.support import EngineStore
from tests.fleet.commands import exit_code, line, worker_process
from tests.fleet.stuck_apps import impatient, mended, patient
from tests.waiting import until_async


async def test_a_workflow_that_sleeps_is_interrupted_and_others_go_on(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    app = impatient()
    client = await postgres_only.engine(None)
    stuck = await client.start(app.workflows["sleeper"].spec, {})
    async with worker_process(direct_dsn, app="tests.fleet.stuck_apps:impatient") as process:
        await line(process.stdout, b"entered sleeper")
        fine = await client.start(app.workflows["fine"].spec, {})

        async def ended() -> bool:
            return (await client.run_info(fine)).status is RunStatus.COMPLETED

        await until_async(ended, "the other run ends")

        async def blocked() -> bool:
            return "TurnTooLong" in ((await client.run_info(stuck)).blocked_reason or "")

        await until_async(blocked, "the run that sleeps is blocked")
        assert process.returncode is None


@pytest.mark.parametrize("lease", ["600"])
async def test_a_process_that_nothing_can_interrupt_ends_and_gives_its_runs_back(
    postgres_only: EngineStore, direct_dsn: str, lease: str
) -> None:
    app = patient()
    client = await postgres_only.engine(None)
    stuck = await client.start(app.workflows["sleeper"].spec, {})
    options = ("--lease", lease, "--max-wedged", "1")
    async with worker_process(direct_dsn, *options, app="tests.fleet.stuck_apps:patient") as wedged:
        await line(wedged.stdout, b"entered sleeper")
        assert await exit_code(wedged) == 70
    row = await client.run_info(stuck)
    assert "TurnTooLong" in (row.blocked_reason or "")
    # No lease is held, though they last for ten minutes: another process may take the run at once.
    engine = await postgres_only.engine(mended())
    assert (await engine.drive(stuck)).status is RunStatus.COMPLETED
