"""Code that goes on when the history knows whose a token is, and what was asked for beside it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg import FlowApp, HookTokenConflict, hook, patched
from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import both
from tests.engine.support import EngineStore


@pytest.mark.parametrize("refused", [False, True])
async def test_it_may_give_up_what_was_asked_for_in_the_same_decision(refused: bool) -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> str:
            return "worked"

        @app.workflow
        async def main() -> list[str]:
            async def enter() -> str:
                try:
                    async with hook("door", token="t"):
                        other.cancel()
                        return "entered"
                except HookTokenConflict as taken:
                    other.cancel()
                    return f"taken by {taken.hook_id}"

            async def beside() -> str:
                return await work()

            owner = hook("owner", token="t" if refused else "another")
            async with owner:
                door = asyncio.create_task(enter())
                other = asyncio.create_task(beside())
                await asyncio.wait([door, other])
            return [await door, "given up" if other.cancelled() else await other]

    played = await both(build)
    assert played.result == ["taken by owner" if refused else "entered", "given up"]
    types = played.types()
    [created] = [at for at, line in enumerate(types) if line.startswith("step_created")]
    assert "door" in types[created - 1]


@pytest.mark.parametrize("marks", [0, 1, 2])
async def test_it_takes_the_new_branch_of_a_patch_as_all_code_does_that_nothing_was_decided_after(
    marks: int,
) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            async def enter() -> bool:
                async with hook("door", token="t"):
                    return patched("inside")

            async def beside() -> list[bool]:
                return [patched(f"beside {number}") for number in range(marks)]

            return [*await asyncio.gather(enter(), beside())]

    played = await both(build)
    assert played.result == [True, [True] * marks]


async def test_a_request_to_cancel_ends_a_wait_for_entry_that_is_shielded_from_it(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("shielded")

    @app.workflow
    async def main() -> bool:
        async def enter() -> None:
            await asyncio.sleep(5)
            async with hook("door", token="t"):
                await asyncio.sleep(5)

        task = asyncio.create_task(enter())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
        return task.cancelled()

    engine = await engine_store.engine(app)
    run_id = await main.start(engine)
    engine_store.advance(timedelta(seconds=6))
    # Both are there when the code is asked again: it makes for the door, and is cancelled.
    await engine.store.resume_due_waits(run_id=run_id)
    await engine.request_cancellation(run_id, drive=False)
    run = await engine.drive(run_id)
    assert (run.status, run.output) == (RunStatus.COMPLETED, True)


async def test_code_that_waits_here_goes_on_from_what_older_code_decided_elsewhere(
    engine_store: EngineStore,
) -> None:
    def build(*, new: bool) -> FlowApp:
        app = FlowApp("deployed")

        @app.workflow
        async def main() -> str:
            await hook("go")
            if new and patched("quicker"):
                return "new"
            await asyncio.sleep(5)
            return "old"

        return app

    here = await engine_store.engine(build(new=True))
    elsewhere = await engine_store.engine(build(new=False))
    worker = FlowWorker(here)
    run_id = await here.start(build(new=True).workflows["main"].spec, {}, drive=False)
    await worker.run_until_idle()
    await elsewhere.resume_hook(run_id, "go", None)
    engine_store.advance(timedelta(seconds=6))
    await here.store.resume_due_waits(run_id=run_id)
    await worker.run_until_idle()
    assert (await here.snapshot(run_id)).output == "old"
