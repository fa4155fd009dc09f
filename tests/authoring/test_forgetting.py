"""A coroutine that is put aside is freed, and none of its code runs."""

import asyncio
import gc
import subprocess
import sys
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest

from flowpg.authoring import forgetting
from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.engine.flow_engine import FlowEngine
from tests.authoring.support import Stage, answer, play, stage
from tests.durable import forever


@types.coroutine
def parked() -> Any:
    """Where a coroutine waits."""
    yield


class Manager:
    """A context manager that must not be left."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.ran.append("class")

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        self.ran.append("async class")


Case = Callable[[list[str]], Any]


async def nested(ran: list[str]) -> None:
    async def inner() -> None:
        try:
            await parked()
        finally:
            ran.append("inner")

    try:
        await inner()
    except BaseException:
        ran.append("outer")
        raise


async def managers(ran: list[str]) -> None:
    @contextmanager
    def sync() -> Iterator[None]:
        try:
            yield
        finally:
            ran.append("sync")

    @asynccontextmanager
    async def asynchronous() -> AsyncIterator[None]:
        try:
            yield
        finally:
            ran.append("async")

    with Manager(ran), sync(), ExitStack() as stack:
        stack.enter_context(sync())
        async with Manager(ran), asynchronous(), AsyncExitStack() as further:
            await further.enter_async_context(asynchronous())
            further.enter_context(sync())
            await parked()


async def generators(ran: list[str]) -> None:
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            await parked()
        finally:
            ran.append("async generator")

    def numbers() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ran.append("generator")

    held = [numbers(), {"key": numbers()}]
    next(held[0])  # type: ignore[call-overload]
    next(held[1]["key"])  # type: ignore[index]
    async for _ in items():
        pass


async def never_awaited(ran: list[str]) -> None:
    async def later() -> None:
        ran.append("later")

    waiting = [later() for _ in range(3)]
    await parked()
    for item in waiting:
        await item


async def looped_over(ran: list[str]) -> None:
    async def later() -> None:
        ran.append("later")

    for first, second in zip((later(), later()), [parked(), later()], strict=True):
        await second
        await first


@pytest.mark.parametrize("case", [nested, managers, generators, never_awaited, looped_over])
def test_nothing_runs_when_a_coroutine_is_dropped(case: Case, recwarn: Any) -> None:
    ran: list[str] = []
    coroutine = case(ran)
    coroutine.send(None)
    gone = weakref.ref(coroutine)
    forgetting.forget([coroutine])
    del coroutine
    gc.collect()
    assert gone() is None
    assert ran == []
    assert [str(warning.message) for warning in recwarn] == []


def test_without_it_cleanup_code_would_run() -> None:
    ran: list[str] = []
    coroutine = nested(ran)
    coroutine.send(None)
    del coroutine
    gc.collect()
    assert ran == ["inner", "outer"]


def test_this_interpreter_can_free_what_it_drops() -> None:
    assert forgetting._find_out()


def test_an_interpreter_that_cannot_keeps_what_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "_answer", False)
    monkeypatch.setattr(forgetting, "_kept", [])
    ran: list[str] = []
    coroutine = nested(ran)
    coroutine.send(None)
    forgetting.forget([coroutine])
    del coroutine
    gc.collect()
    assert ran == []
    kept = list(forgetting._kept)
    forgetting._kept.clear()
    forgetting._answer = True
    forgetting.forget(kept)


def test_a_dropped_generator_elsewhere_still_cleans_up() -> None:
    ran: list[str] = []
    first, second = nested(ran), nested(ran)
    first.send(None)
    second.send(None)
    forgetting.forget([first])
    del first
    gc.collect()
    assert ran == []
    second.close()
    assert ran == ["inner", "outer"]


def witnessed(ran: list[str]) -> Callable[[FlowApp], None]:
    """A workflow that notes every cleanup it does."""

    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: str) -> str:
            return x

        @app.workflow
        async def main() -> str:
            @asynccontextmanager
            async def scope() -> AsyncIterator[None]:
                try:
                    yield
                finally:
                    ran.append(await work("scope"))

            async def child() -> None:
                try:
                    await asyncio.sleep(5)
                finally:
                    ran.append(await work("child"))

            try:
                async with scope(), asyncio.TaskGroup() as group:
                    group.create_task(child())
                    for number in range(3):
                        await hook(f"go {number}", token=f"{number}")
                await asyncio.sleep(10)
                return "done"
            finally:
                ran.append(await work("main"))

    return build


async def evict(on: Stage) -> None:
    """Put every coroutine aside."""
    on.app.parked.clear()
    gc.collect()


@pytest.mark.parametrize("always_replay", [False, True])
async def test_finally_runs_once_a_run_however_often_it_is_put_aside(always_replay: bool) -> None:
    ran: list[str] = []
    acts: list[Any] = []
    for number in range(3):
        acts += [evict, evict, answer(f"go {number}", None), evict]
    on = stage(witnessed(ran), always_replay=always_replay)
    played = await play(on, acts=tuple(acts))
    assert played.result == "done"
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert sorted(outputs) == ["child", "main", "scope"]
    if not always_replay:
        assert set(ran) == {"child", "main", "scope"}
        assert len([e for e in ran if e == "main"]) == 1


async def test_putting_aside_by_itself_runs_nothing() -> None:
    ran: list[str] = []
    on = stage(witnessed(ran))
    await on.start()
    assert len(on.app.parked) == 1
    await evict(on)
    assert len(on.app.parked) == 0
    assert ran == []
    await on.engine.close()


async def test_only_so_many_coroutines_are_kept_and_the_rest_leaves_no_memory() -> None:
    alive: list[weakref.ref[Any]] = []

    class Held:
        pass

    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            held = Held()
            alive.append(weakref.ref(held))
            try:
                await forever()
            finally:
                del held

    app = FlowApp("small", max_parked=2)
    build(app)
    on = stage(build)
    engine = FlowEngine(on.store, app)
    [workflow] = app.workflows.values()
    for number in range(10):
        await engine.start_with_id(f"run-{number}", workflow.spec, {})
    gc.collect()
    assert len(app.parked) == 2
    assert sum(reference() is not None for reference in alive) == 2
    await engine.close()


async def test_a_run_that_is_put_aside_says_nothing_about_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], recwarn: Any
) -> None:
    unraisable: list[Any] = []
    before = sys.unraisablehook
    sys.unraisablehook = unraisable.append
    try:
        on = stage(witnessed([]))
        await on.start()
        await evict(on)
        gc.collect()
    finally:
        sys.unraisablehook = before
        await on.engine.close()
    assert unraisable == []
    assert [record.getMessage() for record in caplog.records] == []
    assert [str(warning.message) for warning in recwarn] == []
    assert capsys.readouterr().err == ""


async def test_an_app_that_is_dropped_runs_nothing_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []
    on = stage(witnessed(ran))
    await on.start()
    await on.engine.close()
    gone = weakref.ref(on.app)
    del on
    gc.collect()
    assert gone() is None
    gc.collect()
    assert ran == []
    assert [record.getMessage() for record in caplog.records] == []


def test_a_process_that_ends_runs_nothing_either() -> None:
    program = """
import asyncio
from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.engine.flow_engine import FlowEngine

app = FlowApp("ending")

@app.workflow
async def main() -> None:
    try:
        await hook("never")
    finally:
        print("cleanup ran")

async def go() -> None:
    engine = FlowEngine.in_memory(app)
    await engine.start(main.spec, {})
    await engine.close()
    print("parked", len(app.parked))

asyncio.run(go())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parked 1\n", "")
