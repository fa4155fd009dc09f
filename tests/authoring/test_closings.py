"""The loser of a race is closed in the append of the decision that follows from the race."""

import asyncio
import contextlib
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.errors import HookTokenNotFound, NonDeterministic
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import Stage, answer, both, replay, stage
from tests.authoring.test_cancellation import steps
from tests.waiting import turns, until_async


async def test_cancelling_a_task_that_sleeps_closes_its_timer_and_nothing_wakes_the_run() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            task = asyncio.create_task(asyncio.sleep(60))
            await work(1)
            task.cancel()
            return await hook("go", str, token="t")

    async def look(on: Stage) -> None:
        assert await on.store.next_wakeup() is None
        assert [w.subject_id for w in await on.store.list_open_suspensions()] == ["go"]
        await answer("go", "gone")(on)

    played = await both(build, acts=(look,))
    assert played.result == "gone"
    types = played.types()
    assert types[types.index("wait_cancelled sleep#1/1") + 1] == "hook_created go"
    assert "wait_completed sleep#1/1" not in types


async def test_the_hook_that_lost_to_its_timeout_is_withdrawn_and_its_token_is_free() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hook("first", token="t"), 2)
            await asyncio.sleep(10)
            return "done"

    async def too_late(on: Stage) -> None:
        await on.pass_time()
        with pytest.raises(HookTokenNotFound):
            await on.engine.resume_hook_by_token("t", 1)

    played = await both(build, acts=(too_late,))
    assert played.result == "done"
    assert played.types().count("hook_disposed first") == 1


async def test_an_answer_that_arrives_first_makes_the_closing_a_no_op() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            async with hook("a", str, token="a") as a, hook("b", str, token="b") as b:
                tasks = [asyncio.ensure_future(one) for one in (a, b)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return [task.result() for task in tasks if task.done()]

    async def both_at_once(on: Stage) -> None:
        await on.engine.resume_hook(on.run_id, "a", "first", drive=False)
        await on.engine.resume_hook(on.run_id, "b", "second", drive=False)
        await on.engine.drive(on.run_id)

    played = await both(build, acts=(both_at_once,))
    assert played.result == ["first"]
    assert "hook_disposed b" not in played.types()


async def test_a_history_that_closed_what_the_code_waits_for_is_no_history_of_it() -> None:
    def first(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            task = asyncio.create_task(asyncio.sleep(60))
            await work(1)
            task.cancel()
            await hook("go", token="t")

    def changed(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            task = asyncio.create_task(asyncio.sleep(60))
            await work(1)
            await hook("go", token="t")
            task.cancel()

    on = stage(first)
    await on.start()
    app = FlowApp("changed")
    changed(app)
    with pytest.raises(NonDeterministic, match=r"timer '.*' is given up, but") as caught:
        replay(app, await on.history())
    assert "called at" in str(caught.value)


@pytest.mark.parametrize("seed", range(30))
async def test_a_request_is_never_swallowed_by_what_ends_in_the_same_turn(seed: int) -> None:
    """However a step's end and the request meet: a workflow that goes on to wait is cancelled."""
    shape, count = seed % 6, seed // 6

    def build(app: FlowApp) -> None:
        @app.step
        async def quick() -> str:
            await turns(count)
            return "done"

        async def once() -> None:
            match shape:
                case 0:
                    await quick()
                case 1:
                    await asyncio.wait_for(quick(), 100)
                case 2:
                    async with asyncio.timeout(100):
                        await quick()
                case 3:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(quick())
                        group.create_task(quick())
                case 4:
                    await asyncio.gather(quick(), quick())
                case 5:
                    await asyncio.shield(quick())

        @app.workflow
        async def main() -> None:
            while True:
                await once()
                await asyncio.sleep(0)

    on = stage(build, always_replay=seed % 2 == 0)
    driving = asyncio.create_task(on.start())

    async def in_the_midst() -> bool:
        there = await on.store.list_run_ids()
        return bool(there) and (await on.snapshot()).last_sequence >= 20

    await until_async(in_the_midst, "it has gone round some times", look_again=0)
    await on.engine.request_cancellation(on.run_id, "stop", drive=False)
    await driving
    snapshot = await on.engine.drive(on.run_id)
    assert snapshot.status is RunStatus.CANCELLED
    assert snapshot.error == "stop"
    await on.engine.close()
