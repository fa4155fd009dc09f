"""Saying the same thing twice: starts, timers, hooks and cancellations are idempotent."""

import asyncio
from typing import Any

import pytest

from flowpg.errors import (
    HookConflict,
    InvalidRunId,
    InvalidTransition,
    RunConflict,
    RunNotFound,
    RunTerminal,
)
from flowpg.model.commands import Decision
from flowpg.model.operations import CancellationRequest, WorkflowProgress
from flowpg.model.snapshot import RunStatus, WaitStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from tests.engine.support import (
    MINUTE,
    SPEC,
    EngineStore,
    Script,
    echo,
    in_order,
    one_step,
    short,
    wrapping,
)


def wait(ctx: WorkflowContext) -> Decision:
    return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", MINUTE)


def ask(ctx: WorkflowContext) -> Decision:
    if ctx.hook_disposed("h"):
        return ctx.complete("withdrawn")
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    return ctx.create_hook("h", "token")


# -- starting ---------------------------------------------------------------------------------


async def test_fifty_starts_of_one_id_are_one_run(engine_store: EngineStore) -> None:
    runtime = Script(one_step(input=1), {"work": echo})
    engine = await engine_store.engine(runtime)
    ids = await asyncio.gather(*(engine.start_with_id("r", SPEC, {"n": 1}) for _ in range(50)))
    assert set(ids) == {"r"}
    assert (await engine.snapshot("r")).output == 1
    assert runtime.calls == [("s", 1)]


async def test_the_same_start_is_the_same_run_also_after_its_end(engine_store: EngineStore) -> None:
    runtime = Script(in_order("a"), {"work": echo})
    engine = await engine_store.engine(runtime)
    for _ in range(3):
        assert await engine.start_with_id("r", SPEC, {"a": 1, "b": 2}) == "r"
        assert await engine.start_with_id("r", SPEC, {"b": 2, "a": 1}) == "r"
    assert len(await engine.history("r")) == 6
    assert runtime.calls == [("a", 1)]


async def test_another_start_of_the_same_id_is_refused_and_harms_nothing(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    await engine.start_with_id("r", SPEC, 1)
    with pytest.raises(RunConflict) as caught:
        await engine.start_with_id("r", SPEC, 2)
    assert caught.value.reason == "workflow input differs"
    with pytest.raises(RunConflict) as caught:
        await engine.start_with_id("r", WorkflowSpec.python("other"), 1)
    assert caught.value.reason == "workflow spec differs"
    await engine.resume_hook("r", "h", "fine")
    assert (await engine.snapshot("r")).output == "fine"


@pytest.mark.parametrize("run_id", ["", " ", "a b", "x" * 300, "a\x00b", "/etc", "é", "-a"])
async def test_a_run_id_that_is_none_is_refused(engine_store: EngineStore, run_id: str) -> None:
    engine = await engine_store.engine(Script(ask))
    with pytest.raises(InvalidRunId):
        await engine.start_with_id(run_id, SPEC)
    for call in (engine.snapshot(run_id), engine.drive(run_id), engine.history(run_id)):
        with pytest.raises(InvalidRunId):
            await call
    assert await engine.list_run_ids() == []


async def test_an_unknown_run_is_not_found_by_any_call(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    calls: list[Any] = [
        engine.drive("nobody"),
        engine.snapshot("nobody"),
        engine.history("nobody"),
        engine.run_info("nobody"),
        engine.resume_wait("nobody", "w"),
        engine.resume_hook("nobody", "h", 1),
        engine.dispose_hook("nobody", "h"),
        engine.request_cancellation("nobody"),
        engine.force_cancel("nobody"),
        engine.terminate_for_host_shutdown("nobody"),
        engine.record_progress("nobody", WorkflowProgress(progress_id="p", completed=1)),
        engine.resume_scheduled_run("nobody"),
    ]
    for call in calls:
        with pytest.raises(RunNotFound):
            await call


async def test_runs_are_listed_in_order_and_with_their_histories(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    for run_id in ("b", "A", "a", "c"):
        await engine.start_with_id(run_id, SPEC)
        await engine.force_cancel(run_id)
    assert await engine.list_run_ids() == ["A", "a", "b", "c"]
    assert [s.run_id for s in await engine.list_snapshots()] == ["A", "a", "b", "c"]
    page = await engine.history_page("b", after=1, limit=2)
    assert [event.sequence for event in page] == [2, 3]


# -- timers -----------------------------------------------------------------------------------


async def test_resuming_a_timer_again_after_the_run_has_ended_is_no_error(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE)
    await engine.resume_wait(run_id, "w")
    history = await engine.history(run_id)
    assert (await engine.resume_wait(run_id, "w")).status is RunStatus.COMPLETED
    assert await engine.history(run_id) == history
    with pytest.raises(RunTerminal):
        await engine.resume_wait(run_id, "unknown")


async def test_resuming_a_timer_of_a_cancelled_run_changes_nothing(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    await engine.force_cancel(run_id, "enough")
    engine_store.advance(MINUTE)
    snapshot = await engine.resume_wait(run_id, "w")
    assert (snapshot.status, snapshot.error) == (RunStatus.CANCELLED, "enough")
    # An end from outside settles the run and not its timers.
    assert snapshot.waits["w"].status is WaitStatus.WAITING
    assert await engine.resume_due_waits() == []


async def test_an_unknown_timer_of_an_open_run_is_an_error(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    with pytest.raises(InvalidTransition):
        await engine.resume_wait(run_id, "unknown")


async def test_of_many_scans_at_once_one_reports_the_timer(engine_store: EngineStore) -> None:
    engines = [await engine_store.engine(Script(wait)) for _ in range(3)]
    run_id = await engines[0].start(SPEC)
    engine_store.advance(MINUTE)
    found = await asyncio.gather(*(engine.resume_due_waits() for engine in engines))
    assert [wakeup.run_id for scan in found for wakeup in scan] == [run_id]
    assert short(await engines[0].history(run_id)).count("wait.completed w") == 1


# -- hooks ------------------------------------------------------------------------------------


async def test_the_same_answer_may_be_delivered_again_after_the_run_has_ended(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    for _ in range(3):
        assert (await engine.resume_hook(run_id, "h", {"a": 1, "b": [1.0]})).terminal
    assert (await engine.resume_hook(run_id, "h", {"b": [1], "a": 1})).terminal
    assert len(await engine.history(run_id)) == 5


async def test_a_redelivered_answer_needs_no_admission_once_the_run_has_ended(
    engine_store: EngineStore,
) -> None:
    pinned = SPEC.with_runtime_build("v1")
    old = await engine_store.engine(Script(ask), builds=["v1"])
    run_id = await old.start(pinned)
    await old.resume_hook(run_id, "h", 1)
    new = await engine_store.engine(Script(ask), builds=["v2"])
    assert (await new.resume_hook(run_id, "h", 1)).output == 1
    assert await new.start_with_id(run_id, pinned) == run_id


async def test_another_answer_is_refused_and_stores_nothing(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    await engine.resume_hook(run_id, "h", 1)
    history = await engine.history(run_id)
    for payload in (2, None, True, "1"):
        with pytest.raises(HookConflict):
            await engine.resume_hook(run_id, "h", payload)
    with pytest.raises(HookConflict):
        await engine.dispose_hook(run_id, "h")
    assert await engine.history(run_id) == history


async def test_a_withdrawal_may_be_repeated_and_refuses_a_late_answer(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    assert await engine.dispose_hook_by_token("token") == (run_id, "h")
    assert (await engine.dispose_hook(run_id, "h")).output == "withdrawn"
    with pytest.raises(HookConflict):
        await engine.resume_hook(run_id, "h", 1)
    assert len(await engine.history(run_id)) == 5


async def test_an_answer_whose_drive_never_happened_is_seen_when_it_is_delivered_again(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    assert (await engine.store.resume_hook(run_id, "h", 1)).applied
    assert (await engine.snapshot(run_id)).status is RunStatus.RUNNING
    assert (await engine.resume_hook(run_id, "h", 1)).output == 1


async def test_a_plain_drive_also_sees_an_answer_whose_drive_never_happened(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.hook_received("h"):
            return ctx.complete("seen")
        return (ctx.create_hook("h", "token"), ctx.sleep("w", MINUTE))

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    await engine.store.resume_hook(run_id, "h", 1)
    assert (await engine.drive(run_id)).output == "seen"


async def test_fifty_equal_answers_at_once_converge_on_one(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    ends = await asyncio.gather(*(engine.resume_hook(run_id, "h", "yes") for _ in range(50)))
    assert {end.output for end in ends} == {"yes"}
    assert short(await engine.history(run_id)).count("hook.received h") == 1


async def test_of_fifty_different_answers_at_once_exactly_one_is_taken(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    results = await asyncio.gather(
        *(engine.resume_hook(run_id, "h", n) for n in range(50)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, HookConflict)]
    assert len(refused) == 49
    output = (await engine.snapshot(run_id)).output
    # The winner may repeat its answer; nobody else may.
    assert (await engine.resume_hook(run_id, "h", output)).output == output


# -- cancellation -----------------------------------------------------------------------------


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
