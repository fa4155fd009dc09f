"""Batches: declared before the first step runs, side by side, each outcome kept as it settles."""

import asyncio
from typing import Any

import pytest

from flowpg.errors import InvalidTransition, NonDeterministic, NonRetryable, UnknownStep
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from tests.engine.support import SECOND, SPEC, EngineStore, Script, Step, Workflow, echo, short
from tests.waiting import turns, until_async


def batch(*ids: str, **retries: RetryPolicy) -> Workflow:
    """A workflow of one batch; each step is named like its id."""

    def workflow(ctx: WorkflowContext) -> Decision:
        if not all(map(ctx.step_completed, ids)):
            return ctx.schedule_steps(
                [ctx.step(name, name, name, retries.get(name)) for name in ids]
            )
        return ctx.complete([ctx.step_output(name) for name in ids])

    return workflow


class Gated:
    """A step that says when it begins, and goes on when told."""

    def __init__(self, then: Step = echo) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = False
        self._then = then

    async def __call__(self, step: StepInvocation) -> Any:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self._then(step)


def fails(step: StepInvocation) -> Any:
    raise ConnectionError(step.step_id)


def fails_for_good(step: StepInvocation) -> Any:
    raise NonRetryable(step.step_id)


async def test_a_batch_fans_out_and_its_outputs_come_back_by_id(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(batch("a", "b", "c"), dict.fromkeys("abc", echo)))
    assert (await engine.snapshot(await engine.start(SPEC))).output == ["a", "b", "c"]


async def test_all_starts_are_durable_before_any_step_runs(engine_store: EngineStore) -> None:
    a, b = Gated(), Gated()
    engine = await engine_store.engine(Script(batch("a", "b"), {"a": a, "b": b}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await a.entered.wait()
    await b.entered.wait()
    assert short(await engine.history("r"))[2:] == [
        "step.created a",
        "step.created b",
        "step.started a",
        "step.started b",
    ]
    a.go.set()
    b.go.set()
    await driving


async def test_an_outcome_is_durable_while_a_sibling_still_runs(engine_store: EngineStore) -> None:
    slow = Gated()
    runtime = Script(batch("a", "b"), {"a": echo, "b": slow})
    engine = await engine_store.engine(runtime)
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))

    async def completed() -> bool:
        return short(await engine.history("r"))[-1:] == ["step.completed a"]

    await slow.entered.wait()
    await until_async(completed, "the outcome of the fast sibling is stored")
    assert not driving.done()
    slow.go.set()
    await driving
    assert (await engine.snapshot("r")).output == ["a", "b"]
    # The replay between the two outcomes left the running sibling alone.
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_a_step_that_ends_while_workflow_code_is_asked_is_not_run_again(
    engine_store: EngineStore,
) -> None:
    slow = Gated()
    asked = 0

    class Pondering(Script):
        async def run_workflow(self, invocation: WorkflowInvocation) -> Decision:  # type: ignore[override]
            nonlocal asked
            asked += 1
            decision = self.workflow(invocation.context())
            if asked == 2:
                slow.go.set()
                await ended.wait()
            return decision

    def end(step: StepInvocation) -> Any:
        ended.set()
        return step.input

    async def last(step: StepInvocation) -> Any:
        await turns(20)  # time enough to begin the other again

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("slow") and not ctx.step_completed("last"):
            return ctx.schedule_step("last", "last")
        return batch("a", "slow")(ctx)

    ended = asyncio.Event()
    slow = Gated(end)
    runtime = Pondering(workflow, {"a": echo, "slow": slow, "last": last})
    engine = await engine_store.engine(runtime)
    assert (await engine.snapshot(await engine.start(SPEC))).output == ["a", "slow"]
    assert runtime.calls == [("a", 1), ("slow", 1), ("last", 1)]


@pytest.mark.parametrize(
    ("failure", "last"),
    [(fails, "run.retry_exhausted bad"), (fails_for_good, "run.failed")],
    ids=["exhausted", "not retryable"],
)
async def test_a_failure_that_ends_the_run_settles_every_sibling(
    engine_store: EngineStore, failure: Step, last: str
) -> None:
    slow = Gated()
    bad = Gated(failure)
    workflow = batch("bad", "slow", bad=RetryPolicy.none())
    engine = await engine_store.engine(Script(workflow, {"bad": bad, "slow": slow}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await slow.entered.wait()
    bad.go.set()
    await driving
    snapshot = await engine.snapshot("r")
    assert snapshot.status is RunStatus.FAILED
    assert snapshot.steps["slow"].status is StepStatus.CANCELLED
    assert "outcome unknown" in str(snapshot.steps["slow"].error)
    assert short(await engine.history("r"))[-2:] == ["step.cancelled slow", last]
    assert slow.cancelled


async def test_a_failure_that_ends_the_run_settles_a_sibling_in_a_delayed_retry(
    engine_store: EngineStore,
) -> None:
    bad = Gated(fails)
    workflow = batch("bad", "later", bad=RetryPolicy.none(), later=RetryPolicy.fixed(3, SECOND))
    engine = await engine_store.engine(Script(workflow, {"bad": bad, "later": fails}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))

    async def retrying() -> bool:
        return "step.retrying later" in short(await engine.history("r"))

    await bad.entered.wait()
    await until_async(retrying, "the sibling waits for its retry")
    bad.go.set()
    await driving
    snapshot = await engine.snapshot("r")
    assert snapshot.status is RunStatus.FAILED
    assert snapshot.steps["later"].status is StepStatus.CANCELLED
    assert await engine.next_wakeup() is None


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("by itself")])
async def test_a_handler_that_exits_or_cancels_itself_fails_like_any_other(
    engine_store: EngineStore, error: BaseException
) -> None:
    def exits(step: StepInvocation) -> Any:
        raise error

    slow = Gated()
    workflow = batch("exits", "slow", exits=RetryPolicy.none())
    engine = await engine_store.engine(Script(workflow, {"exits": exits, "slow": slow}))
    snapshot = await engine.snapshot(await engine.start(SPEC))
    assert snapshot.status is RunStatus.FAILED
    assert str(snapshot.error).startswith(type(error).__name__)
    assert snapshot.steps["slow"].status is StepStatus.CANCELLED


async def test_delayed_siblings_resume_together(engine_store: EngineStore) -> None:
    def once(step: StepInvocation) -> Any:
        return fails(step) if step.attempt == 1 else step.input

    pause = RetryPolicy.fixed(2, 10 * SECOND)
    runtime = Script(batch("a", "b", a=pause, b=pause), {"a": once, "b": once})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED
    engine_store.advance(11 * SECOND)
    assert len(await engine.resume_due_retries()) == 2
    assert (await engine.snapshot(run_id)).output == ["a", "b"]
    # One append started both second attempts.
    starts = [e for e in await engine.history(run_id) if e.type == "step_started"][2:]
    assert len({event.recorded_at for event in starts}) == 1


async def test_a_due_retry_is_not_held_back_by_a_sibling_that_is_due_later(
    engine_store: EngineStore,
) -> None:
    def once(step: StepInvocation) -> Any:
        return fails(step) if step.attempt == 1 else step.input

    workflow = batch(
        "soon", "late", soon=RetryPolicy.fixed(2, SECOND), late=RetryPolicy.fixed(2, 60 * SECOND)
    )
    runtime = Script(workflow, {"soon": once, "late": once})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    engine_store.advance(2 * SECOND)
    snapshot = await engine.drive(run_id)
    assert snapshot.steps["soon"].status is StepStatus.COMPLETED
    assert snapshot.steps["late"].status is StepStatus.PENDING
    assert snapshot.status is RunStatus.SUSPENDED
    assert runtime.calls[2:] == [("soon", 2)]


async def test_a_retry_that_comes_due_while_a_sibling_runs_is_started_in_the_same_drive(
    engine_store: EngineStore,
) -> None:
    slow = Gated()
    again = asyncio.Event()

    def once(step: StepInvocation) -> Any:
        if step.attempt == 1:
            return fails(step)
        again.set()
        return step.input

    pause = RetryPolicy(max_attempts=2, delay_ms=1)
    runtime = Script(batch("a", "slow", a=pause), {"a": once, "slow": slow})
    engine = await engine_store.engine(runtime)
    driving = asyncio.ensure_future(engine.start(SPEC))
    await again.wait()
    assert not driving.done()
    slow.go.set()
    assert (await engine.snapshot(await driving)).output == ["a", "slow"]


async def test_a_batch_with_only_some_steps_done_goes_on_with_the_others(
    engine_store: EngineStore,
) -> None:
    held = Gated()
    first = await engine_store.engine(Script(batch("a", "b"), {"a": echo, "b": held}))
    driving = asyncio.ensure_future(first.start_with_id("r", SPEC))
    await held.entered.wait()

    async def completed() -> bool:
        return "step.completed a" in short(await first.history("r"))

    await until_async(completed, "one sibling is done")
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    runtime = Script(batch("a", "b"), {"a": echo, "b": echo})
    second = await engine_store.engine(runtime)
    assert (await second.drive("r")).output == ["a", "b"]
    assert runtime.calls == [("b", 1)]


@pytest.mark.parametrize("fault", ["unknown step", "drift"])
async def test_a_fault_waits_for_the_steps_at_work_and_keeps_their_outcomes(
    engine_store: EngineStore, fault: str
) -> None:
    slow = Gated()
    steps: dict[str, Step] = {"slow": slow}
    if fault == "drift":
        steps["other"] = echo

    def workflow(ctx: WorkflowContext) -> Decision:
        value = "changed" if fault == "drift" and ctx.step_completed("other") else "as it was"
        return ctx.schedule_steps([ctx.step("other", "other"), ctx.step("slow", "slow", value)])

    engine = await engine_store.engine(Script(workflow, steps))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await slow.entered.wait()
    if fault == "drift":

        async def recorded() -> bool:
            return "step.completed other" in short(await engine.history("r"))

        await until_async(recorded, "the first outcome is stored")
    assert not driving.done()
    slow.go.set()
    with pytest.raises((UnknownStep, NonDeterministic)):
        await driving
    snapshot = await engine.snapshot("r")
    assert snapshot.steps["slow"].output == "as it was"
    assert not slow.cancelled


@pytest.mark.parametrize(
    "ids", [(), ("a", "a"), ("a", " "), ("a", "x" * 600)], ids=["empty", "twice", "blank", "long"]
)
async def test_a_malformed_batch_is_refused_before_anything_is_stored(
    engine_store: EngineStore, ids: tuple[str, ...]
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.schedule_steps([ctx.step(step_id, "work") for step_id in ids])

    runtime = Script(workflow, {"work": echo})
    engine = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition):
        await engine.start_with_id("r", SPEC)
    assert short(await engine.history("r")) == ["run.created"]
    assert runtime.calls == []


async def test_a_batch_of_nothing_but_done_steps_is_refused(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.schedule_steps([ctx.step("a", "work"), ctx.step("b", "work")])

    runtime = Script(workflow, {"work": echo})
    engine = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition, match="no progress"):
        await engine.start(SPEC)
    assert len(runtime.calls) == 2


async def test_a_tuple_of_commands_commits_in_one_append(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("s") and ctx.wait_completed("w"):
            return ctx.complete("both")
        return (ctx.schedule_step("s", "work"), ctx.sleep("w", SECOND))

    engine = await engine_store.engine(Script(workflow, {"work": echo}))
    run_id = await engine.start(SPEC)
    history = await engine.history(run_id)
    assert short(history)[1:5] == [
        "run.started",
        "step.created s",
        "step.started s",
        "wait.created w",
    ]
    assert len({event.recorded_at for event in history[1:5]}) == 1
    engine_store.advance(2 * SECOND)
    assert (await engine.drive(run_id)).output == "both"
