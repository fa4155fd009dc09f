"""How a coroutine follows its history: order, races, conflicts, takeovers, and what blocks it."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, info, logger, now, progress
from flowpg.authoring.errors import NotDurable, UndecodablePayload, WorkflowStuck
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import NonDeterministic
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append, AppendResult
from flowpg.model.snapshot import RunStatus
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.authoring.support import RUN_ID, START, Stage, answer, both, play, stage


def replay(app: FlowApp, history: list[FlowEventEnvelope]) -> Any:
    """What the app decides at the end of a history."""
    snapshot = project(RUN_ID, history)
    return app.run_workflow(
        WorkflowInvocation(RUN_ID, snapshot.spec, snapshot.input, snapshot, history)
    )


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
    assert store.refused > 2
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


# -- what blocks a run --------------------------------------------------------------------------


async def blocked(build: Callable[[FlowApp], Any], error: type[Exception]) -> str:
    """The words of the fault that keeps a run from being driven; the run is not failed."""
    on = stage(build)
    with pytest.raises(error) as caught:
        await on.start()
    assert (await on.snapshot()).status in (RunStatus.PENDING, RunStatus.RUNNING)
    await on.engine.close()
    return str(caught.value)


async def test_waiting_for_what_nothing_brings_blocks_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await asyncio.Event().wait()

    assert "no step, timer or hook" in await blocked(build, WorkflowStuck)


async def test_a_loop_that_never_waits_blocks_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowpg.authoring.loop.MAX_CALLBACKS", 1000)

    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            while True:  # noqa: ASYNC110  that is the mistake
                await asyncio.sleep(0)

    assert "1000 callbacks" in await blocked(build, WorkflowStuck)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: asyncio.open_connection("localhost", 1), "make it a step|do it in a step"),
        (lambda: asyncio.to_thread(print, "x"), "make the function one"),
        (lambda: asyncio.create_subprocess_exec("true"), "do it in a step"),
        (lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1), "do it in a step"),
        (lambda: asyncio.get_running_loop().add_reader(0, print), "do it in a step"),
        (lambda: asyncio.get_running_loop().call_soon_threadsafe(print), "hook"),
        (lambda: asyncio.get_running_loop().add_signal_handler(1, print), "hook"),
    ],
)
async def test_input_and_output_say_what_to_write_instead(call: Any, words: str) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await call()

    message = await blocked(build, NotDurable)
    assert any(word in message for word in words.split("|"))


async def test_a_recorded_result_that_no_longer_fits_blocks_the_run() -> None:
    def build(kind: type) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            async def work() -> Any:
                return "a text"

            work.__annotations__["return"] = kind
            step = app.step(work)

            @app.workflow
            async def main() -> Any:
                value = await step()
                async with hook("go", token="t") as go:
                    await go
                return value

        return declare

    on = stage(build(str))
    await on.start()
    app = FlowApp("new")
    build(int)(app)
    with pytest.raises(UndecodablePayload, match="the result of step 'work' does not fit"):
        replay(app, await on.history())
    # The code that fits is there again.
    app = FlowApp("old")
    build(str)(app)
    assert replay(app, await on.history())[0].type == "create_hook"


async def test_a_blocked_run_goes_on_when_the_code_is_mended() -> None:
    def build(broken: bool) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            @app.workflow
            async def main() -> str:
                if broken:
                    await asyncio.Event().wait()
                return "done"

        return declare

    on = stage(build(True))
    with pytest.raises(WorkflowStuck):
        await on.start()
    info_before = await on.engine.run_info(RUN_ID)
    assert "WorkflowStuck" in (info_before.blocked_reason or "")
    mended = FlowApp("mended")
    build(False)(mended)
    [workflow] = mended.workflows.values()
    engine = FlowEngine(on.store, mended)
    assert workflow.result(await engine.drive(RUN_ID)) == "done"


async def test_a_decision_is_never_mixed_with_another_run() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: int) -> int:
            await asyncio.sleep(0)
            return x

        @app.workflow
        async def main(x: int) -> list[int]:
            return [await work(x) for _ in range(5)]

    on = stage(build)
    run_ids = [f"run-{n}" for n in range(20)]
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


async def test_history_that_the_code_does_not_ask_for_any_more_is_no_completion() -> None:
    def build(calls: int) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            @app.step
            async def work(x: int) -> int:
                return x

            @app.workflow
            async def main() -> str:
                for number in range(calls):
                    await work(number)
                return "done"

        return declare

    played = await play(stage(build(2)))
    app = FlowApp("shorter")
    build(1)(app)
    with pytest.raises(NonDeterministic, match="no further call"):
        replay(app, played.history[:-1])
