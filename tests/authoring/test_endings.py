"""What a run leaves behind when its workflow is done, and what became of the calls it gave up."""

import asyncio
from datetime import timedelta
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import START, Stage, both, stage
from tests.authoring.test_cancellation import steps
from tests.durable import forever
from tests.waiting import until_async


async def test_what_is_left_at_work_is_cancelled_when_the_workflow_returns() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            async def background() -> None:
                try:
                    await forever()
                finally:
                    await work("cleaned")

            kept = asyncio.create_task(background())
            await work("front")
            assert not kept.done()
            return "returned"

    played = await both(build)
    assert played.result == "returned"
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert outputs == ["front", "cleaned"]


async def test_a_step_that_lost_its_race_is_closed_before_the_run_completes() -> None:
    ended: list[str] = []

    def build(app: FlowApp) -> None:
        begun = asyncio.Event()

        @app.step
        async def slow() -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("slow")
            return "never"

        @app.step
        async def fast() -> str:
            await begun.wait()
            return "fast"

        @app.workflow
        async def main() -> str:
            tasks = [asyncio.create_task(slow()), asyncio.create_task(fast())]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            return done.pop().result()

    played = await both(build)
    assert played.result == "fast"
    assert played.types()[-3:] == [
        "step_completed fast#2",
        "step_cancelled slow#1",
        "run_completed",
    ]
    assert ended == ["slow", "slow"]  # once a history: its handler was told


async def test_a_call_that_is_given_up_before_it_is_recorded_is_never_made() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> Any:
            task = asyncio.create_task(work("never"))
            timer = asyncio.create_task(asyncio.sleep(1000))
            await asyncio.sleep(0)
            task.cancel()
            timer.cancel()
            return await work("made")

    played = await both(build)
    assert [e.data["input"] for e in played.history if e.type == "step_created"] == [{"x": "made"}]
    assert "wait_created" not in {e.type for e in played.history}


async def test_a_timer_whose_task_is_cancelled_does_not_hold_the_run() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            task = asyncio.create_task(asyncio.sleep(86400))
            await work(1)
            task.cancel()
            await asyncio.sleep(1)
            return "done"

    played = await both(build)
    assert played.result == "done"
    assert played.history[-1].recorded_at - START == timedelta(seconds=1)
    assert [e.type for e in played.history].count("wait_completed") == 1


async def test_a_timeout_that_was_not_needed_is_closed_with_the_next_decision() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> list[Any]:
            seen = []
            for number in range(3):
                async with asyncio.timeout(10):
                    seen.append(await work(number))
                await asyncio.sleep(20)
            return seen

    played = await both(build)
    assert played.result == [0, 1, 2]
    types = played.types()
    assert [t.split()[0] for t in types].count("wait_completed") == 3
    for timer, after in ("sleep#1", "sleep#3"), ("sleep#4", "sleep#6"), ("sleep#7", "sleep#9"):
        closed = types.index(f"wait_cancelled {timer}")
        assert types[closed + 1] == f"wait_created {after}"
        appended = played.history[closed].recorded_at, played.history[closed + 1].recorded_at
        assert appended[0] == appended[1]


async def test_any_durable_wait_can_be_timed_out_and_what_lost_is_closed() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def slow() -> str:
            await asyncio.Event().wait()
            return "never"

        @app.workflow
        async def main() -> list[str]:
            seen = []
            for what in (slow(), hook("go", token="t"), asyncio.sleep(1000)):
                try:
                    await asyncio.wait_for(what, 2)
                except TimeoutError:
                    seen.append("timed out")
            try:
                # The token is free again in the very append that closes the first hook.
                async with asyncio.timeout(2), hook("again", token="t") as again:
                    await again
            except TimeoutError:
                seen.append("timed out")
            return seen

    for always_replay in (False, True):
        on = stage(build, always_replay=always_replay)
        starting = asyncio.create_task(on.start())

        async def suspended(on: Stage = on, starting: asyncio.Task[Any] = starting) -> bool:
            if await on.store.next_wakeup() is not None:
                on.store.advance(timedelta(seconds=2))
                await on.store.resume_due_waits()
                on.engine.poke(on.run_id)
            return starting.done()

        # The slow step is at work at first, so the drive does not return.
        await until_async(suspended, "the drive returns", look_again=0)
        while not (await on.engine.drive(on.run_id)).terminal:
            await on.pass_time()
        snapshot = await on.snapshot()
        assert snapshot.status is RunStatus.COMPLETED
        assert on.workflow.result(snapshot) == ["timed out"] * 4
        closed = [e.type for e in await on.history() if e.type.endswith(("cancelled", "disposed"))]
        assert closed == ["step_cancelled", "hook_disposed", "wait_cancelled", "hook_disposed"]
        await on.engine.close()
