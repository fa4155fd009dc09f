"""Cancellation: asked for and cleaned up, or at once; and races with whatever else happens."""

import asyncio
from typing import Any

import pytest

from flowpg.errors import InvalidTransition, RunConflict
from flowpg.model.commands import Decision
from flowpg.model.operations import CancellationRequest
from flowpg.model.snapshot import RunStatus, WaitStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, echo, one_step, short, wrapping


def wait(ctx: WorkflowContext) -> Decision:
    return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", MINUTE)


def cleans_up(ctx: WorkflowContext) -> Decision:
    if ctx.cancellation_request() is not None:
        if not ctx.step_completed("clean"):
            return ctx.schedule_step("clean", "work", "cleaned")
        return ctx.cancel()
    return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", MINUTE)


async def test_a_cancellation_request_lets_the_workflow_clean_up(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(cleans_up, {"work": echo}))
    run_id = await engine.start(SPEC)
    snapshot = await engine.request_cancellation(run_id, "not needed")
    assert (snapshot.status, snapshot.error) == (RunStatus.CANCELLED, "not needed")
    assert snapshot.waits["w"].status is WaitStatus.CANCELLED
    assert short(await engine.history(run_id))[3:] == [
        "run.cancellation.requested",
        "step.created clean",
        "step.started clean",
        "step.completed clean",
        "run.cancelled",
    ]
    # Said again it changes nothing; said otherwise, on a run that has ended, neither.
    request = CancellationRequest(reason="not needed")
    assert (await engine.request_cancellation(run_id, request)).error == "not needed"
    assert (await engine.request_cancellation(run_id, "other")).error == "not needed"
    assert len(await engine.history(run_id)) == 8


async def test_a_second_request_with_another_reason_is_a_conflict(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(cleans_up))
    run_id = await engine.start(SPEC)
    await engine.request_cancellation(run_id, "one", drive=False)
    with pytest.raises(RunConflict):
        await engine.request_cancellation(run_id, "two", drive=False)


async def test_completing_after_a_cancellation_request_is_refused(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    await engine.request_cancellation(run_id, drive=False)
    runtime = Script(lambda ctx: ctx.complete())
    other = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition, match="cancellation was requested"):
        await other.drive(run_id)
    assert not (await other.snapshot(run_id)).terminal


async def test_a_run_that_was_cancelled_before_its_first_turn_never_starts(
    engine_store: EngineStore,
) -> None:
    runtime = Script(cleans_up, {"work": echo})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC, drive=False)
    await engine.force_cancel(run_id)
    assert (await engine.drive(run_id)).status is RunStatus.CANCELLED
    assert await engine.start_with_id(run_id, SPEC) == run_id
    assert short(await engine.history(run_id)) == ["run.created", "run.cancelled"]
    assert runtime.replays == 0


async def test_a_request_before_the_first_turn_goes_straight_to_the_cleanup(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(cleans_up, {"work": echo}))
    run_id = await engine.start(SPEC, drive=False)
    assert (await engine.request_cancellation(run_id)).status is RunStatus.CANCELLED
    assert short(await engine.history(run_id)) == [
        "run.created",
        "run.cancellation.requested",
        "step.created clean",
        "step.started clean",
        "step.completed clean",
        "run.cancelled",
    ]


@pytest.mark.parametrize("call", range(2, 8))
async def test_a_cancellation_and_the_final_commit_have_one_outcome_that_stays(
    engine_store: EngineStore, call: int
) -> None:
    """Each time the cancellation comes before another call of the drive."""
    runtime = Script(one_step(), {"work": echo})
    calls = 0

    async def race(name: str, args: Any) -> None:
        nonlocal calls
        calls += name != "close"
        if calls == call and name != "close":
            await canceller.force_cancel("r", "raced")

    canceller = await engine_store.engine(None)
    engine = await engine_store.engine(runtime, wrap=wrapping(before=race))
    await engine.start_with_id("r", SPEC)
    first = await engine.snapshot("r")
    assert first.terminal
    history = await canceller.history("r")
    await canceller.force_cancel("r", "again")
    await canceller.request_cancellation("r", "again")
    assert await canceller.history("r") == history
    assert (await canceller.snapshot("r")).status is first.status


async def test_a_cancellation_request_in_the_same_turn_as_an_outcome_is_not_swallowed(
    engine_store: EngineStore,
) -> None:
    """The request is stored while the append with the outcome and the end is on its way."""

    async def race(name: str, args: Any) -> None:
        if name == "append" and any(e.type == "run_completed" for e in args[0].events):
            await canceller.request_cancellation("r", "in time", drive=False)

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.cancellation_request() is not None:
            return ctx.cancel()
        return one_step(input=1)(ctx)

    canceller = await engine_store.engine(None)
    engine = await engine_store.engine(Script(workflow, {"work": echo}), wrap=wrapping(before=race))
    await engine.start_with_id("r", SPEC)
    snapshot = await engine.snapshot("r")
    assert (snapshot.status, snapshot.error) == (RunStatus.CANCELLED, "in time")


async def test_a_cancellation_request_cancels_the_handlers_of_the_steps_it_cancels(
    engine_store: EngineStore,
) -> None:
    entered = asyncio.Event()
    cancelled = asyncio.Event()

    async def forever(step: Any) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.cancel() if ctx.cancellation_request() is not None else one_step()(ctx)

    engine = await engine_store.engine(Script(workflow, {"work": forever}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await entered.wait()
    assert (await engine.request_cancellation("r", "stop")).status is RunStatus.CANCELLED
    await driving
    assert cancelled.is_set()


async def test_a_cancelled_step_is_not_left_running_beside_the_cleanup(
    engine_store: EngineStore,
) -> None:
    entered = asyncio.Event()
    left = asyncio.Event()

    async def forever(step: Any) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async def clean(step: Any) -> Any:
        await left.wait()
        return "cleaned"

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.cancellation_request() is None:
            return one_step()(ctx)
        return ctx.cancel() if ctx.step_completed("c") else ctx.schedule_step("c", "clean")

    engine = await engine_store.engine(Script(workflow, {"work": forever, "clean": clean}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await entered.wait()
    snapshot = await engine.request_cancellation("r")
    await driving
    assert snapshot.status is RunStatus.CANCELLED
    assert snapshot.steps["c"].output == "cleaned"


@pytest.mark.parametrize("how", ["force_cancel", "timeout", "host_shutdown"])
async def test_an_end_from_outside_reaches_a_drive_in_progress(
    engine_store: EngineStore, how: str
) -> None:
    entered = asyncio.Event()

    async def forever(step: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    engine = await engine_store.engine(Script(one_step(), {"work": forever}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await entered.wait()
    match how:
        case "force_cancel":
            end = await engine.force_cancel("r", "now")
        case "timeout":
            end = await engine.terminate_for_timeout("r", await engine.store.now(), "now")
        case _:
            end = await engine.terminate_for_host_shutdown("r", "now")
    assert end.terminal
    assert end.terminal_outcome is not None
    await driving
    assert short(await engine.history("r"))[-2] == "step.started s"
