"""Arguments and facts that are too large: caught at the call, and the same in every replay."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from flowpg import sync
from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, progress, set_attributes
from flowpg.authoring.failures import failure_origin
from flowpg.errors import PayloadTooLarge
from flowpg.model import sizes
from flowpg.model.codecs import Compression
from flowpg.model.encryption import Encryption
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsonl import dump_history
from flowpg.model.retry import RetryPolicy
from flowpg.model.sizes import is_omitted, set_size_limits
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import SPEC, EngineStore, Mortal, Script

LARGE = 2_000_000


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = asdict(sizes.limits)
    yield
    for name, value in before.items():
        setattr(sizes.limits, name, value)


def app_of(*, plain: bool = False, always_replay: bool = False, codecs: Any = ()) -> FlowApp:
    """A workflow that is told that an argument is too large, waits for an answer, and goes on."""
    app = FlowApp("large", always_replay=always_replay, codecs=codecs)

    @app.step
    async def take(text: str) -> int:
        return len(text)

    @app.step
    def take_plainly(text: str) -> int:
        return len(text)

    async def main(size: int) -> list[Any]:
        said: list[Any] = []
        for step in (take, take_plainly.run):
            try:
                said.append(await step("x" * size))
            except PayloadTooLarge as error:
                origin = failure_origin(error)
                assert origin is not None
                said.append(f"{origin.step_name}: {error}")
        said.append(await hook("go"))
        said.append(await take("small"))
        return said

    def main_plainly(size: int) -> list[Any]:
        said: list[Any] = []
        for step in (take, take_plainly):
            try:
                said.append(sync.wait(step("x" * size)) if step is take else step("x" * size))
            except PayloadTooLarge as error:
                origin = failure_origin(error)
                assert origin is not None
                said.append(f"{origin.step_name}: {error}")
        said.append(sync.wait(hook("go")))
        said.append(take_plainly("small"))
        return said

    app.workflow(name="main")(main_plainly if plain else main)
    return app


def types(history: list[FlowEventEnvelope]) -> list[str]:
    """Type and subject of every event."""
    return [f"{e.type} {e.subject}" if e.subject else e.type for e in history]


EXPECTED = [
    "run_created",
    "run_started",
    "step_created take#1",
    "step_started take#1",
    "step_non_retryable take#1",
    "step_created take_plainly#2",
    "step_started take_plainly#2",
    "step_non_retryable take_plainly#2",
    "hook_created go",
]


@pytest.mark.parametrize("codecs", [(), (Compression(), Encryption({"k": bytes(32)}))])
@pytest.mark.parametrize("always_replay", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_an_argument_that_is_too_large_is_caught_at_the_call_and_nothing_of_it_is_stored(
    engine_store: EngineStore, plain: bool, always_replay: bool, codecs: Any
) -> None:
    set_size_limits(max_bytes=5_000)
    app = app_of(plain=plain, always_replay=always_replay, codecs=codecs[1:])
    engine = await engine_store.engine(app)
    main = app.workflows["main"]
    run_id = await main.start(engine, 20_000)
    history = await engine.history(run_id)
    assert types(history) == EXPECTED
    assert "x" * 50 not in dump_history(history)
    assert len(dump_history(history)) < 5_000
    assert is_omitted(history[2].data["input"])
    await engine.resume_hook(run_id, "go", "answer")
    said = main.result(await engine.snapshot(run_id))
    assert said[2:] == ["answer", 5]
    for line, name in zip(said, ("take", "take_plainly"), strict=False):
        assert line.startswith(f"{name}: run {run_id!r}: the payload of step_created '{name}#")
        assert "the limit is 5000; store the value elsewhere" in line
        assert "x" * 50 not in line


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("then", [1_000, 1_048_576])
@pytest.mark.parametrize("codecs", [(), (Encryption({"k": bytes(32)}),)])
async def test_another_limit_after_a_crash_changes_no_outcome_that_is_recorded(
    engine_store: EngineStore, plain: bool, then: int, codecs: Any
) -> None:
    set_size_limits(max_bytes=5_000)
    app = app_of(plain=plain, codecs=codecs)
    main = app.workflows["main"]
    run_id = await main.start(await engine_store.engine(app), 20_000)
    before = await engine_store.engines[-1].history(run_id)
    set_size_limits(max_bytes=then)
    # Another process: it has nothing but the history.
    other = await engine_store.engine(app_of(plain=plain, codecs=codecs))
    await other.resume_hook(run_id, "go", "answer")
    run = await other.snapshot(run_id)
    assert run.status is RunStatus.COMPLETED, run.error
    said = main.result(run)
    assert [line.partition(":")[0] for line in said[:2]] == ["take", "take_plainly"]
    assert all("the limit is 5000" in line for line in said[:2])
    assert (await other.history(run_id))[: len(before)] == before


@pytest.mark.parametrize("then", [1_000, 1_048_576])
async def test_an_argument_that_was_stored_is_no_matter_of_a_limit_that_is_lower_now(
    engine_store: EngineStore, then: int
) -> None:
    app = app_of()
    main = app.workflows["main"]
    run_id = await main.start(await engine_store.engine(app), 20_000)
    set_size_limits(max_bytes=then)
    other = await engine_store.engine(app_of())
    await other.resume_hook(run_id, "go", "answer")
    assert main.result(await other.snapshot(run_id)) == [20_000, 20_000, "answer", 5]


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_any_write_leaves_either_all_of_a_refused_step_or_nothing(
    engine_store: EngineStore, after: bool
) -> None:
    for at in range(1, 9):
        set_size_limits(max_bytes=5_000)
        dying = Mortal(at, after=after)
        app = app_of()
        main = app.workflows["main"]
        engine = await engine_store.engine(app, wrap=dying.wrap)
        run_id = f"run-{at}"
        with contextlib.suppress(Exception):
            await main.start_with_id(engine, run_id, 20_000)
            await engine.resume_hook(run_id, "go", "answer")
        engine_store.leases_run_out()
        set_size_limits(max_bytes=1_000_000)
        other = await engine_store.engine(app_of())
        await main.start_with_id(other, run_id, 20_000)
        with contextlib.suppress(Exception):
            await other.resume_hook(run_id, "go", "answer")
        said = main.result(await other.snapshot(run_id))
        refused = {
            event.data["step_id"]
            for event in await other.history(run_id)
            if event.type == "step_created" and is_omitted(event.data["input"])
        }
        # What was recorded under the old limit failed; what was not is decided under the new one.
        for line, step_id in zip(said, ("take#1", "take_plainly#2"), strict=False):
            assert (line == 20_000) is (step_id not in refused)
        assert said[2:] == ["answer", 5]


async def test_the_failure_of_one_of_many_comes_after_all_of_them_are_declared(
    engine_store: EngineStore,
) -> None:
    def build(**options: Any) -> FlowApp:
        app = FlowApp("many", **options)

        @app.step
        async def take(text: str) -> int:
            return len(text)

        @app.workflow
        async def main(size: int) -> list[Any]:
            found = await asyncio.gather(
                take("a"), take("x" * size), take("bb"), return_exceptions=True
            )
            said = [type(one).__name__ if isinstance(one, Exception) else one for one in found]
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(60))
                    group.create_task(take("x" * size))
                    group.create_task(take("y" * size))
                    group.create_task(take("ccc"))
            except* PayloadTooLarge as errors:
                said.append(len(errors.exceptions))
            said.append(await hook("go"))
            return said

        return app

    set_size_limits(max_bytes=5_000)
    app = build()
    main = app.workflows["main"]
    run_id = await main.start(await engine_store.engine(app), 20_000)
    before = types(await engine_store.engines[-1].history(run_id))
    assert before[11:] == [
        "wait_created sleep#4/1",
        *(f"step_created take#{number}" for number in (4, 5, 6)),
        "step_started take#6",
        *("step_started take#4", "step_non_retryable take#4"),
        *("step_started take#5", "step_non_retryable take#5"),
        *("step_cancelled take#6", "wait_cancelled sleep#4/1"),
        "hook_created go",
    ]
    set_size_limits(max_bytes=1_048_576)
    other = await engine_store.engine(build(always_replay=True))
    await other.resume_hook(run_id, "go", "on")
    assert main.result(await other.snapshot(run_id)) == [1, "PayloadTooLarge", 2, 1, "on"]


async def test_a_step_of_another_queue_is_refused_before_it_is_a_task(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("routed")

    @app.step
    async def take(text: str) -> int:
        return len(text)

    @app.workflow
    async def main() -> int:
        try:
            return await take.options(queue="gpu")("x" * LARGE)
        except PayloadTooLarge as error:
            return error.size // LARGE * error.limit

    engine = await engine_store.engine(app)
    run_id = await main.start(engine)
    assert main.result(await engine.snapshot(run_id)) == 1_048_576


@pytest.mark.parametrize("heard", [True, False])
async def test_a_hand_written_runtime_hears_of_it_if_the_step_continues_the_workflow(
    engine_store: EngineStore, heard: bool
) -> None:
    policy = RetryPolicy.none()
    policy = policy.continue_workflow_on_failure() if heard else policy

    def decide(ctx: WorkflowContext) -> Any:
        error = ctx.step_failed("a")
        if error is not None:
            return ctx.complete(error.partition(":")[0])
        return ctx.schedule_step("a", "work", "x" * LARGE, policy)

    script = Script(decide)
    engine = await engine_store.engine(script)
    run = await engine.snapshot(await engine.start(SPEC))
    assert script.calls == []
    if heard:
        assert (run.status, run.output) == (RunStatus.COMPLETED, "PayloadTooLarge")
    else:
        assert str(run.error).startswith("PayloadTooLarge: run")
        assert (run.status, run.steps) == (RunStatus.FAILED, {})


async def test_a_workflow_that_is_refused_again_and_again_is_no_replay_loop(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("stubborn")

    @app.step
    async def take(text: str) -> int:
        return len(text)

    @app.workflow
    async def main() -> int:
        for _ in range(12):
            with contextlib.suppress(PayloadTooLarge):
                await take("x" * LARGE)
        return await take("small")

    engine = await engine_store.engine(app, max_replays=4)
    run_id = await main.start(engine)
    assert main.result(await engine.snapshot(run_id)) == 5


@pytest.mark.parametrize("plain", [False, True])
async def test_facts_that_no_database_would_take_are_refused_at_the_call(
    engine_store: EngineStore, plain: bool
) -> None:
    def build() -> FlowApp:
        app = FlowApp("facts")

        @app.step
        async def take(text: str) -> int:
            return len(text)

        def tried(call: Any) -> str:
            try:
                call()
            except PayloadTooLarge as error:
                return error.event_type
            return "stored"

        def facts() -> list[str]:
            wide = {f"{number:03}" + "\x01" * 252: "\x01" * 2_000 for number in range(99)}
            return [
                tried(lambda: progress(1, details="x" * LARGE)),
                tried(lambda: progress(1, details="x" * 1_000)),
                tried(lambda: set_attributes(wide)),
            ]

        async def main() -> list[Any]:
            said: list[Any] = facts()
            try:
                await hook("go", metadata="x" * LARGE)
            except PayloadTooLarge as error:
                said.append(error.event_type)
            return [*said, await hook("go", metadata="small"), await take("abc")]

        def main_plainly() -> list[Any]:
            said: list[Any] = facts()
            try:
                sync.wait(hook("go", metadata="x" * LARGE))
            except PayloadTooLarge as error:
                said.append(error.event_type)
            return [*said, sync.wait(hook("go", metadata="small")), sync.wait(take("abc"))]

        app.workflow(name="main")(main_plainly if plain else main)
        return app

    app = build()
    main = app.workflows["main"]
    run_id = await main.start(await engine_store.engine(app))
    other = await engine_store.engine(build())
    assert "xxxx" * 500 not in dump_history(await other.history(run_id))
    await other.resume_hook(run_id, "go", "on")
    run = await other.snapshot(run_id)
    kinds = ["run_progress_recorded", "stored", "run_attributes_set", "hook_created"]
    assert main.result(run) == [*kinds, "on", 3]


@pytest.mark.parametrize("what", ["hook", "progress", "result", "error"])
async def test_what_is_over_a_lower_limit_of_this_process_fails_the_run_by_its_name(
    engine_store: EngineStore, what: str
) -> None:
    set_size_limits(max_bytes=2_000)
    app = FlowApp("lower")

    @app.step
    async def refuse() -> None:
        raise ValueError("long" * 2_000)

    @app.workflow
    async def main() -> str:
        if what == "hook":
            await hook("go", metadata="x" * 5_000)
        if what == "progress":
            progress(1, details="x" * 5_000)
            await hook("go")
        if what == "error":
            await refuse()
        return "x" * 5_000

    engine = await engine_store.engine(app)
    run = await engine.snapshot(await main.start(engine))
    assert run.status is RunStatus.FAILED
    # How a failure reads is no value: it is cut as it is made, and recorded under any limit.
    expected = "ValueError: longlong" if what == "error" else "PayloadTooLarge: "
    assert expected in str(run.error).partition("\n")[0]
    assert "x" * 50 not in str(run.error)
