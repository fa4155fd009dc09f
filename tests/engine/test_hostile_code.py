"""Whatever user code raises, the run gets an outcome: no drive waits for ever, no loop dies."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowpg.engine.errortext import describe
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import RetryLater
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import SPEC, EngineStore, Script, one_step


class Outcome(BaseException):
    """Not an Exception, as the outcomes of test libraries are none."""


class Unprintable(Exception):
    """Its text cannot be made, and trying to would end the process."""

    def __str__(self) -> str:
        raise SystemExit("no text")


class OddNotes(Exception):
    """Has notes that are none."""

    __notes__ = 5  # type: ignore[assignment]


class BrokenNotes(Exception):
    """Has notes that cannot be read."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise ValueError


def late_delay() -> RetryLater:
    """An error whose delay became something else after it was made."""
    error = RetryLater("busy", timedelta(0))
    error.delay = 5  # type: ignore[assignment]
    return error


RAISED: dict[str, Callable[[], BaseException]] = {
    "an error that is no Exception": Outcome,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "SystemExit": SystemExit,
    "CancelledError": asyncio.CancelledError,
    "an error that cannot be printed": Unprintable,
    "an error with odd notes": OddNotes,
    "an error with broken notes": BrokenNotes,
    "a retry after no delay": late_delay,
}
raised = pytest.mark.parametrize("make", RAISED.values(), ids=RAISED)


@raised
async def test_whatever_an_asynchronous_step_raises_is_a_failed_attempt(
    engine_store: EngineStore, make: Callable[[], BaseException]
) -> None:
    def step(invocation: StepInvocation) -> Any:
        raise make()

    runtime = Script(one_step(retry=RetryPolicy.fixed(2)), {"work": step})
    engine = await engine_store.engine(runtime)
    async with asyncio.timeout(20):
        await engine.start_with_id("r", SPEC)
    assert (await engine.snapshot("r")).status is RunStatus.FAILED
    assert runtime.calls == [("s", 1), ("s", 2)]


@raised
async def test_whatever_a_plain_step_raises_in_its_thread_is_a_failed_attempt(
    engine_store: EngineStore, make: Callable[[], BaseException]
) -> None:
    attempts = []

    class Plain:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            return one_step(retry=RetryPolicy.fixed(2))(invocation.context())

        def run_step(self, invocation: StepInvocation) -> Any:
            attempts.append(invocation.attempt)
            raise make()

    engine = await engine_store.engine(Plain())
    async with asyncio.timeout(20):
        await engine.start_with_id("r", SPEC)
    assert (await engine.snapshot("r")).status is RunStatus.FAILED
    assert attempts == [1, 2]


async def test_an_interrupt_that_a_plain_step_raises_itself_does_not_end_the_process(
    engine_store: EngineStore,
) -> None:
    class Plain:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            return one_step(retry=RetryPolicy.fixed(1))(invocation.context())

        def run_step(self, invocation: StepInvocation) -> Any:
            raise KeyboardInterrupt

    engine = await engine_store.engine(Plain())
    async with asyncio.timeout(20):
        await engine.start_with_id("r", SPEC)
    assert "KeyboardInterrupt" in str((await engine.snapshot("r")).error)


async def test_a_step_that_waits_for_a_thread_when_the_engine_closes_has_not_failed() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Plain:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            ctx = invocation.context()
            if not (ctx.step_completed("a") and ctx.step_completed("b")):
                return ctx.schedule_steps(
                    [ctx.step(name, "work", retry=RetryPolicy.none()) for name in "ab"]
                )
            return ctx.complete()

        def run_step(self, invocation: StepInvocation) -> Any:
            begun.set()
            ended.wait(20)

    store = InMemoryEventStore()
    engine = FlowEngine.builder(Plain()).with_store(store).with_step_threads(1).build()
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await asyncio.to_thread(begun.wait, 20)
    await engine.close()
    ended.set()
    assert await driving == "r"  # given back, with no outcome of a step that never began
    history = (await store.load_runs(["r"]))["r"].history
    assert not any(event.type == "step_completed" for event in history if event.subject == "b")
    assert not any("fail" in event.type for event in history)
    other = FlowEngine.builder(Plain()).with_store(store).build()
    assert (await other.drive("r")).status is RunStatus.COMPLETED


@raised
async def test_whatever_workflow_code_raises_fails_its_run(
    engine_store: EngineStore, make: Callable[[], BaseException]
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        raise make()

    engine = await engine_store.engine(Script(workflow))
    await engine.start_with_id("r", SPEC)
    assert (await engine.snapshot("r")).status is RunStatus.FAILED


@raised
def test_every_error_can_be_described(make: Callable[[], BaseException]) -> None:
    error = make()
    assert describe(error).startswith(type(error).__name__)


def test_a_retry_after_something_that_is_no_duration_is_refused_where_it_is_made() -> None:
    with pytest.raises(TypeError, match="timedelta"):
        RetryLater("busy", 5)  # type: ignore[arg-type]
