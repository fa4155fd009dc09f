"""How a coroutine follows its history: order, races, conflicts, takeovers, and what blocks it."""

import asyncio
import random
from datetime import timedelta
from typing import Any, cast

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, info, logger, now, progress
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append, AppendResult
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.authoring.support import RUN_ID, START, Stage, answer, both, play, replay, stage


def racing(app: FlowApp) -> None:
    @app.workflow
    async def main() -> Any:
        async with hook("go", str, token="t") as go:
            try:
                async with asyncio.timeout(10):
                    return await go
            except TimeoutError:
                return "timed out"


async def test_a_race_is_won_by_the_first_event_in_the_log() -> None:
    async def answer_when_due(on: Stage) -> None:
        # Both are in the log before the run is driven again.
        on.store.advance(timedelta(seconds=10))
        await on.engine.resume_hook(on.run_id, "go", "answered", drive=False)
        await on.store.resume_due_waits()
        await on.engine.drive(on.run_id)

    async def due_then_answer(on: Stage) -> None:
        on.store.advance(timedelta(seconds=10))
        await on.store.resume_due_waits()
        await on.engine.resume_hook(on.run_id, "go", "answered", drive=False)
        await on.engine.drive(on.run_id)

    assert (await both(racing, acts=(answer_when_due,))).result == "answered"
    assert (await both(racing, acts=(due_then_answer,))).result == "timed out"


class Quarrelsome(InMemoryEventStore):
    """Between a decision and its append someone else may append something first."""

    def __init__(self, chance: random.Random, often: float) -> None:
        super().__init__(clock=lambda: START)
        self.chance = chance
        self.often = often
        self.refused = 0

    async def append(self, append: Append) -> AppendResult:
        if append.events and self.chance.random() < self.often:
            report = WorkflowProgress(progress_id=f"outside {self.refused}", completed=1)
            self.refused += 1
            await self.record_progress(append.run_id, report)
        return await super().append(append)


def busy(app: FlowApp) -> None:
    @app.step
    async def work(x: int) -> int:
        return x + 1

    @app.workflow
    async def main() -> Any:
        total = 0
        for number in range(5):
            progress(number)
            parts = await asyncio.gather(*(work(number * 10 + n) for n in range(3)))
            total += sum(parts)
            try:
                async with asyncio.timeout(1):
                    await asyncio.sleep(2 if number % 2 else 0.5)
            except TimeoutError:
                total += 1000
        return total, now().isoformat()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_refused_commit_loses_nothing_and_doubles_nothing(
    seed: int, always_replay: bool
) -> None:
    calm = await play(stage(busy))
    store = Quarrelsome(random.Random(seed), 0.4)
    played = await play(stage(busy, always_replay=always_replay, store=store))
    assert store.refused > 1
    assert played.result == calm.result

    def own(lines: list[str]) -> list[str]:
        return [line for line in lines if "outside" not in line]

    assert sorted(own(played.types())) == sorted(calm.types())
    # A process that has never seen the run comes to the same end.
    app = FlowApp("other")
    busy(app)
    decision = replay(app, played.history[:-1])
    assert decision[-1].output == played.snapshot.output


async def test_a_coroutine_that_saw_what_was_never_stored_is_replaced() -> None:
    """This process folds a step's outcome, is refused, and another process stores another one."""

    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> int:
            return 1

        @app.workflow
        async def main() -> Any:
            first = await work()
            async with hook("go", str, token="t") as go:
                return first, await go

    on = stage(build)
    await on.start()
    history = await on.history()
    assert replay(on.app, history) is not None
    other = []
    for event in history:
        if event.type == "step_completed":
            data = {**event.data, "output": 2}
        elif event.type == "hook_created":
            data = {**event.data, "token": "t"}
        else:
            data = event.data
        other.append(
            FlowEventEnvelope(
                event.run_id,
                event.sequence,
                event.event_id,
                event.recorded_at,
                event.type,
                data=data,
            )
        )
    # Parked after the first turn only, it has consumed the outcome and nothing confirmed it.
    app = FlowApp("again")
    build(app)
    cut = next(i for i, event in enumerate(history) if event.type == "step_completed") + 1
    replay(app, history[:cut])
    received = FlowEventEnvelope(
        RUN_ID, len(other) + 1, "e", START, "hook_received", data={"hook_id": "go", "payload": "x"}
    )
    (complete,) = replay(app, [*other, received])
    assert complete.output == {"$": "tuple", "v": [2, "x"]}


async def test_a_run_goes_on_in_another_process_wherever_the_first_one_stopped() -> None:
    calm = await play(stage(busy))
    for cut in range(2, len(calm.history)):
        app = FlowApp("other")
        busy(app)
        decision = replay(app, calm.history[:cut])
        commands = [c.type for c in decision]
        assert commands, cut
        # Whoever takes over gets every open step, to run it again.
        snapshot = project(RUN_ID, calm.history[:cut])
        named = {
            step.step_id
            for command in decision
            for step in getattr(command, "steps", [command])
            if hasattr(step, "step_id")
        }
        assert set(snapshot.open.steps) <= named


async def test_time_is_the_same_in_every_replay_and_never_runs_backwards() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> None: ...

        @app.workflow
        async def main() -> list[str]:
            seen = [now()]
            for _ in range(3):
                await work()
                seen.append(now())
                await asyncio.sleep(7.25)
                seen.append(now())
            async with hook("go", token="t") as go:
                await go
                seen.append(now())
            assert seen == sorted(seen)
            return [str((moment - info().started_at).total_seconds()) for moment in seen]

    async def later(on: Stage) -> None:
        await on.pass_time()

    async def much_later(on: Stage) -> None:
        on.store.advance(timedelta(hours=1))
        await answer("go", None)(on)

    played = await both(build, acts=(later, later, later, much_later))
    assert played.result == ["0.0", "0.0", "7.25", "7.25", "14.5", "14.5", "21.75", "3621.75"]


async def test_a_timer_is_never_early() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await asyncio.sleep(0.0000011)

    played = await both(build)
    created = next(event for event in played.history if event.type == "wait_created")
    assert created.data["resume_at"] == "2026-01-31T12:00:00.000002Z"


async def test_the_deadline_of_a_timer_is_fixed_when_it_is_first_recorded() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await asyncio.sleep(10)

    async def drive_early(on: Stage) -> None:
        on.store.advance(timedelta(seconds=3))
        await on.store.wake_run(on.run_id)
        await on.engine.drive(on.run_id)

    played = await both(build, acts=(drive_early, drive_early))
    assert played.history[-1].recorded_at - START == timedelta(seconds=10)


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_line_is_logged_once_however_often_it_is_replayed(
    always_replay: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: int) -> int:
            return x

        @app.workflow
        async def main() -> None:
            logger.warning("begin")
            for number in range(3):
                await work(number)
                logger.warning("worked %d", number)
                await asyncio.sleep(1)

            async def one(number: int) -> None:
                await asyncio.sleep(number)
                logger.warning("slept %d", number)

            # A turn that decides nothing leaves no trace in the history.
            await asyncio.gather(one(1), one(2), one(3))

    await play(stage(build, always_replay=always_replay))
    lines = [record.getMessage() for record in caplog.records if record.name == "flowpg.workflow"]
    assert lines == [
        "begin",
        *(f"worked {n}" for n in range(3)),
        *(f"slept {n}" for n in range(1, 4)),
    ]
    assert {getattr(record, "run_id", None) for record in caplog.records} == {RUN_ID}


async def test_a_decision_is_never_mixed_with_another_run() -> None:
    run_ids = [f"run-{n}" for n in range(20)]
    all_at_work = asyncio.Barrier(len(run_ids))

    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: int) -> int:
            await all_at_work.wait()
            return x

        @app.workflow
        async def main(x: int) -> list[int]:
            return [await work(x) for _ in range(5)]

    on = stage(build)
    await asyncio.gather(
        *(
            on.engine.start_with_id(run_id, on.workflow.spec, on.workflow.input(number))
            for number, run_id in enumerate(run_ids)
        )
    )
    for number, run_id in enumerate(run_ids):
        assert on.workflow.result(await on.engine.snapshot(run_id)) == [number] * 5


async def test_the_hosts_loop_and_task_are_as_before() -> None:
    seen: list[Any] = []

    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            seen.append(asyncio.get_running_loop())
            seen.append(asyncio.current_task())

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    app = FlowApp("host")
    build(app)
    [workflow] = app.workflows.values()
    store = InMemoryEventStore(clock=lambda: START)
    await store.start(cast("Any", workflow.request()))
    [run_id] = await store.list_run_ids()
    loaded = (await store.load_runs([run_id]))[run_id]
    snapshot = project(run_id, loaded.history)
    app.run_workflow(
        WorkflowInvocation(run_id, snapshot.spec, snapshot.input, snapshot, loaded.history)
    )
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    assert seen[0] is not loop
    assert seen[1] is not task
