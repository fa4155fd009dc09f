"""Timers: never early, never twice, and the same however often the code is replayed."""

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from flowpg import (
    FlowApp,
    FlowEngine,
    FlowWorker,
    InMemoryEventStore,
    InvalidArgument,
    RunStatus,
    hook,
)
from flowpg.authoring.context import now, wait_until
from flowpg.testing import TestedRun, WorkflowEnvironment
from tests.behaviours.support import SECOND, both, everywhere


async def test_a_timer_ends_at_its_time_whatever_is_replayed_meanwhile() -> None:
    app = FlowApp("sleeper")

    @app.step
    async def work(n: int) -> int:
        return n

    @app.workflow
    async def main() -> str:
        began = now()
        timer = asyncio.create_task(asyncio.sleep(10))
        for n in range(5):  # each makes the workflow run again while the timer is open
            await hook(f"h{n}", int, token=f"h{n}")
            await work(n)
        await timer
        return "early" if now() - began < 10 * SECOND else "in time"

    async def answers(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
        for n in range(5):
            await env.advance(timedelta(seconds=1.5))
            await run.answer(f"h{n}", n)

    seen = await everywhere(app, scenario=answers)
    assert seen.result == "in time"
    assert seen.took == 10 * SECOND
    assert seen.types.count("wait_created") == seen.types.count("wait_completed") == 1


async def test_a_sleeping_task_that_is_cancelled_takes_its_timer_along() -> None:
    app = FlowApp("given up")

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def main() -> str:
        sleeper = asyncio.create_task(asyncio.sleep(3600))
        await work()
        sleeper.cancel()
        try:
            await sleeper
        except asyncio.CancelledError:
            await work()
            return "given up"
        return "slept"

    seen = await everywhere(app)
    assert seen.result == "given up"
    assert seen.took < 2 * SECOND
    assert seen.snapshot.open.waits == {}
    assert "wait_completed" not in seen.types
    assert "wait_cancelled" in seen.types


async def test_deadlines_in_other_zones_are_honoured_and_those_without_one_refused() -> None:
    app = FlowApp("zones")

    @app.workflow
    async def main() -> str:
        tokyo = timezone(timedelta(hours=9))
        await wait_until(datetime(2026, 1, 2, 9, 30, tzinfo=tokyo))
        try:
            await wait_until(datetime(2026, 1, 2, 9, 30))  # noqa: DTZ001  what is refused
        except InvalidArgument as error:
            return f"{now():%d %H:%M} {type(error).__name__}"
        return "taken"

    seen = await both(app)
    assert seen.result == "02 00:30 InvalidArgument"


async def test_a_thousand_timers_of_one_run_all_end_and_each_once() -> None:
    app = FlowApp("many")

    @app.workflow
    async def main(count: int) -> int:
        await asyncio.gather(*(asyncio.sleep(60) for _ in range(count)))
        return count

    seen = await both(app, 1000)
    assert seen.result == 1000
    assert seen.took == 60 * SECOND
    assert seen.types.count("wait_completed") == 1000
    subjects = [e.subject for e in seen.history if e.type == "wait_completed"]
    assert len(set(subjects)) == 1000


async def test_a_step_and_a_hook_that_take_too_long_are_given_up_and_the_run_goes_on() -> None:
    app = FlowApp("impatient")

    @app.step
    async def slow() -> int:
        raise AssertionError("mocked")

    @app.workflow
    async def main() -> list[str]:
        seen = []
        try:
            await asyncio.wait_for(hook("answer", int, token="t"), 2)
        except TimeoutError:
            seen.append(f"hook {now():%S}")
        try:
            async with asyncio.timeout(2):
                await slow()
        except TimeoutError:
            seen.append(f"step {now():%S}")
        await asyncio.sleep(1)
        return seen

    kept = []
    for always_replay in (False, True):
        async with WorkflowEnvironment(app, always_replay=always_replay) as env:
            env.mock(slow, returns=1, takes=timedelta(hours=1))
            run = await env.start(main)
            assert await run.result() == ["hook 02", "step 04"]
            history = await run.history()
            types = [event.type for event in history]
            assert types.count("hook_disposed") == 1
            assert types.count("step_cancelled") == 1
            assert (await run.snapshot()).status is RunStatus.COMPLETED
            kept.append([f"{e.sequence} {e.type} {e.payload}" for e in history])
    assert kept[0] == kept[1]


async def test_the_cost_of_a_timer_does_not_grow_with_those_before_it() -> None:
    app = FlowApp("loop")

    @app.workflow
    async def main(count: int) -> int:
        for _ in range(count):
            await asyncio.sleep(1)
        return count

    async def cost(count: int) -> float:
        store = InMemoryEventStore()
        engine = FlowEngine.builder(app).with_store(store).build()
        run_id = await engine.start(main.spec, main.input(count), drive=False)
        worker = FlowWorker(engine)
        began = time.process_time()
        for _ in range(count):
            await worker.run_until_idle()
            store.advance(1 * SECOND)
        took = time.process_time() - began
        await worker.run_until_idle()
        assert (await engine.snapshot(run_id)).output == count
        await engine.close()
        return took / count

    await cost(50)
    short = min([await cost(100) for _ in range(3)])
    # Ten times as many: a cost that grew with the history would be ten times as high.
    assert await cost(1000) < 3 * short


async def test_a_timer_and_an_answer_at_the_same_moment_have_one_winner_in_every_replay() -> None:
    app = FlowApp("race")

    @app.step
    async def record(winner: str) -> str:
        return winner

    @app.workflow
    async def main() -> str:
        try:
            async with asyncio.timeout(60):
                winner = await hook("go", str, token="t")
        except TimeoutError:
            winner = "timer"
        await asyncio.sleep(1)
        return await record(winner)

    winners = set()
    for millis in range(-2, 3):

        async def answer(
            env: WorkflowEnvironment, run: TestedRun[Any], millis: int = millis
        ) -> None:
            async def act() -> None:
                if "go" in await run.hooks():
                    await run.answer("go", "hook")

            env.after(timedelta(seconds=60, milliseconds=millis), act)

        seen = await both(app, scenario=answer)
        first = next(e.type for e in seen.history if e.type in ("wait_completed", "hook_received"))
        assert seen.result == ("hook" if first == "hook_received" else "timer")
        winners.add(seen.result)
    assert winners == {"hook", "timer"}


async def test_time_never_runs_backwards_and_is_the_databases() -> None:
    app = FlowApp("clock")

    @app.workflow
    async def main() -> list[datetime]:
        seen = [now()]
        for delay in (0, 5, 0.000001, 86400):
            await asyncio.sleep(delay)
            seen.append(now())
        return seen

    seen = (await both(app)).result
    assert seen == sorted(seen)
    assert seen[0] == datetime(2026, 1, 1, tzinfo=UTC)
    assert seen[-1] >= seen[0] + timedelta(days=1, seconds=5)
