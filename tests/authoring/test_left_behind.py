"""What a run leaves behind in its process, and what another process left behind of a run."""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, wait_until
from flowpg.authoring.context import now as run_now
from flowpg.authoring.loop import RunLoop, RunTimer
from flowpg.authoring.operations import HookOperation, StepOperation, TimerOperation
from flowpg.authoring.tasks import RunFuture, RunTask
from flowpg.authoring.turns import RunTurns
from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import Stage, answer, play, stage
from tests.engine.support import EngineStore

OF_A_RUN = {
    *(RunTurns, RunLoop, RunTask, RunFuture, RunTimer),
    *(StepOperation, TimerOperation, HookOperation),
}


def waiting_in_every_way(app: FlowApp) -> None:
    """Waits of every kind."""

    @app.step
    async def work(number: int) -> dict[str, int]:
        return {"number": number}

    @app.workflow
    async def main() -> int:
        found = await asyncio.gather(*(work(n) for n in range(3)))
        await asyncio.sleep(1)
        await wait_until(run_now() + timedelta(seconds=1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await hook("never")
        async with asyncio.timeout(60), hook("approval", token="t") as asked:
            await asked
        return len(found)


async def test_a_run_that_has_ended_leaves_no_garbage_to_collect() -> None:
    async def time_passes(on: Stage) -> None:
        await on.pass_time()

    acts = (time_passes, time_passes, time_passes, answer("approval", None))
    await play(stage(waiting_in_every_way), acts=acts)
    while gc.collect():  # what tests before left may take more than one round
        pass
    gc.disable()
    try:
        played = await play(stage(waiting_in_every_way), acts=acts)
        assert played.result == 3
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert {type(one) for one in gc.garbage} & OF_A_RUN == set()
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_steps_that_another_process_began_are_all_begun_again(
    engine_store: EngineStore,
) -> None:
    both_begun, barrier, never = asyncio.Event(), asyncio.Barrier(2), asyncio.Event()
    begun: set[str] = set()

    async def stuck(name: str) -> None:
        begun.add(name)
        if len(begun) == 2:
            both_begun.set()
        await never.wait()

    async def together(name: str) -> None:
        await barrier.wait()

    mine = await engine_store.engine(pair(together))
    other = await engine_store.engine(pair(stuck))
    run_id = await mine.start(pair(together).workflows["main"].spec, {}, drive=False)
    await FlowWorker(mine).run_until_idle()
    await mine.store.resume_hook(run_id, "go", None)
    async with asyncio.timeout(60):
        driving = asyncio.create_task(other.drive(run_id))
        await both_begun.wait()
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driving
        engine_store.leases_run_out()
        # The coroutine that waited here for the answer goes on. Each step waits for the other one.
        await FlowWorker(mine).run_until_idle()
    assert (await mine.snapshot(run_id)).status is RunStatus.COMPLETED


def pair(meet: Callable[[str], Awaitable[None]]) -> FlowApp:
    """An app whose workflow waits for an answer, then runs two steps at once."""
    app = FlowApp("pair")

    @app.step
    async def work(name: str) -> str:
        await meet(name)
        return name

    @app.workflow
    async def main() -> None:
        await hook("go")
        await asyncio.gather(work("x"), work("y"))

    return app
